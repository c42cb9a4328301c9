"""The results of the task benchmark: stored row by row, continued, and shown on the page."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from bench.tasks.bfcl import decoded, json_schema, tools_of
from bench.tasks.models import result_name
from bench.tasks.peer_tasks import run_process
from bench.tasks.report import PAGE, page
from bench.tasks.results import RESULTS, Results, summary
from bench.tasks.taskbench import chosen, without_folder
from bench.tasks.variants import VARIANTS, tasks_for

from evoclaw.core.messages import Reply, ToolCall

ROW: dict[str, Any] = {
    "digest": "d",
    "solved": True,
    "why": "",
    "stop": "completed",
    "wrong_done": False,
    "seconds": 2.0,
    "tokens": 10,
}
ENTRY: dict[str, Any] = {
    "id": "simple_1",
    "category": "simple",
    "question": [[{"role": "user", "content": "Area of 3 by 4?"}]],
    "function": [
        {
            "name": "shape.area",
            "description": "The area.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "sides": {"type": "tuple", "items": {"type": "float"}},
                    "unit": {"type": "any"},
                },
                "required": ["sides"],
            },
        }
    ],
}


def test_the_task_page_matches_the_stored_results() -> None:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    assert PAGE.read_text() == page(found)


def test_a_page_without_results_says_how_to_get_some() -> None:
    assert "No results are stored yet: run `make taskbench`." in page({})


def test_an_interrupted_measurement_continues_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = Results(path)
    rows = first.model("m")
    first.store(rows, "files/a", ROW)
    second = Results(path)
    assert second.is_known(second.model("m"), "files/a", "d")
    assert not second.is_known(second.model("m"), "files/a", "changed")
    assert not second.is_known(second.model("m"), "files/b", "d")
    again = Results(path, again=True)
    assert not again.is_known(again.model("m"), "files/a", "d")
    again.store(again.model("m"), "files/a", ROW)
    assert again.is_known(again.model("m"), "files/a", "d")


def test_rows_of_tasks_that_were_removed_are_forgotten(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.store(results.model("m"), "files/old", ROW)
    results.store(results.model("m", "bfcl"), "simple_1", {"right": True})
    results.store(results.peer("smolagents", "m")["tasks"], "files/old", ROW)
    results.forget_other_tasks({"files/new"})
    assert summary(results.found)["models"]["m"]["tasks"] == 0
    assert summary(results.found)["models"]["m"]["bfcl"] == 1
    assert summary(results.found)["peers"]["smolagents"]["tasks"] == 0


def test_the_summary_and_the_page_count_each_model_and_peer(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    failed = {**ROW, "solved": False, "wrong_done": True, "why": "there is no | a.txt"}
    results.store(results.model("m"), "files/copy", ROW)
    results.store(results.model("m"), "files/sum", failed)
    for variant in ("double confirmation", "default tools"):
        results.store(results.model("m", f"variant: {variant}"), "files/sum", ROW)
    bfcl = {"category": "simple", "right": True, "seconds": 1.0}
    results.store(results.model("m", "bfcl"), "simple_1", bfcl)
    results.store(results.peer("smolagents", "m")["tasks"], "files/sum", ROW)
    assert summary(results.found) == {
        "models": {
            "m": {
                "tasks": 2,
                "solved": 1,
                "wrong_done": 1,
                "bfcl": 1,
                "bfcl_right": 1,
                "seconds": 5.0,
            }
        },
        "peers": {
            "smolagents": {
                "model": "m",
                "tasks": 1,
                "solved": 1,
                "evoclaw_few_tools": 0,
                "evoclaw_default_tools": 1,
            }
        },
    }
    lines = page(results.found).splitlines()
    assert "| m | files/sum | completed | there is no / a.txt |" in lines
    assert "| double confirmation | m | 1 | 0 | 1 | 2 | 1 | 0 | 2 |" in lines
    assert "| smolagents | m | 1 | **1** | 0 | 10 | 2.0 | **0 of 1** | **1 of 1** |" in lines


def test_models_are_named_without_their_path() -> None:
    assert result_name("local:/some/where/small-q4.gguf") == "small-q4"
    assert result_name("openai/gpt-x") == "openai/gpt-x"


def test_results_have_no_path_of_the_machine() -> None:
    folder = Path(tempfile.gettempdir()) / "taskbench-x1y2"
    assert without_folder(f"I wrote {folder}/notes/a.txt.") == "I wrote /notes/a.txt."
    assert without_folder(f"I wrote {folder}/work/a.txt.") == "I wrote a.txt."


def test_an_unknown_task_is_refused_with_the_groups() -> None:
    assert [task.name for task in chosen(["files/copy"], None)] == ["files/copy"]
    assert len(chosen([], 3)) == 3
    with pytest.raises(SystemExit, match="the groups are: files/"):
        chosen(["nothing"], None)


def test_a_variant_is_measured_where_it_can_have_an_effect() -> None:
    by_name = {variant.name: tasks_for(variant, chosen([], None)) for variant in VARIANTS}
    assert {task.group for task in by_name["without skills"]} == {"skills"}
    assert by_name["many tools"] == by_name["default tools"]
    assert all(task.for_peers for task in by_name["many tools"])


def test_functions_of_bfcl_become_tools_and_their_calls_get_the_old_names_back() -> None:
    tools = tools_of(ENTRY)
    tool = tools["shape.area"]
    assert tool.name == "shape_area"
    assert tool.parameters["type"] == "object"
    assert tool.parameters["properties"]["sides"] == {"type": "array", "items": {"type": "number"}}
    assert json_schema({"type": "any"}) == {}
    reply = Reply(calls=(ToolCall("1", "shape_area", '{"sides": [3, 4]}'), ToolCall("2", "x", "{")))
    assert decoded(reply, tools) == [{"shape.area": {"sides": [3, 4]}}, {"x": {}}]


def test_a_peer_that_prints_nonsense_or_hangs_has_failed(tmp_path: Path) -> None:
    failed = run_process(["sh", "-c", "echo nonsense; echo broken >&2"], "{}", 20)
    assert (failed["answer"], failed["problem"]) == ("", "broken")
    hangs = run_process(["sh", "-c", "sleep 100"], "{}", 0.2)
    assert "took longer" in hangs["problem"]
