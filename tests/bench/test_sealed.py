"""The sealed part of `make evobench`, in small: a model server that follows planted rules."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bench.evolution.evobench import main
from bench.evolution.sealed import add_options, measure_sealed, paired_interval
from bench.evolution.sealed_entries import (
    CATEGORIES,
    SIZES,
    Entry,
    StoredRuns,
    first_value,
    question_of,
    recurring_tools,
    split_entries,
)
from bench.evolution.sealed_examples import example_of

from evoclaw.core.profile import CallStyle
from evoclaw.evolution.cases import Split
from evoclaw.evolution.proposers.rule_search import shipped_rules
from evoclaw.providers.text_calls import shipped_tool_prompt
from tests.support.model_server import ModelServer, model_server
from tests.support.weights import VARIABLE

pytest.importorskip("gepa", reason="install gepa")

RULE = "Give lengths in metres."
FUNCTION = {
    "name": "tape.measure",
    "description": "Measures a length.",
    "parameters": {"type": "dict", "properties": {"length": {"type": "float"}}},
}


def entry_of(category: str, number: int) -> Entry:
    question = f"Measure {category} {number}, please."
    entry: Entry = {
        "id": f"{category}_{number}",
        "category": category,
        "question": [[{"role": "user", "content": question}]],
        "function": [FUNCTION],
    }
    if category != "irrelevance":
        entry["answer"] = [{"tape.measure": {"length": [number, float(number)]}}]
    return entry


class PlantedJudge:
    """Knows the right calls of planted entries."""

    def __init__(self) -> None:
        self.entries = [entry_of(category, n) for category in CATEGORIES for n in range(1, 191)]

    def judge(self, entry: Entry, calls: list[dict[str, Any]]) -> tuple[bool, str]:
        wanted = [{"tape.measure": first_value(c["tape.measure"])} for c in entry.get("answer", ())]
        return calls == wanted, "" if calls == wanted else "the length is wrong"


@asynccontextmanager
async def planted_judge(count: int) -> AsyncGenerator[PlantedJudge]:
    yield PlantedJudge()


class PlantedServer(ModelServer):
    """Measures rightly if it reads the rule, and writes the rule if it is asked to reflect.

    Without the rule, only requests for which nothing is to be called go well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[tuple[str, str, str]] = []
        """Model, instructions and question of each request for an entry that was answered."""
        self.stop_after: int | None = None
        self.breaks: set[str] = set()
        """Questions that go wrong with the rule."""
        self.follows = RULE
        self.stubborn: set[str] = set()
        """Models that follow no rule."""
        self.reflects = True
        self.improves = "its instructions"
        """The text that the reflecting model adds the rule to."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        system = "".join(m["content"] for m in body["messages"] if m["role"] == "system")
        said = body["messages"][-1]["content"]
        if self.stop_after is not None and len(self.answered) >= self.stop_after:
            self.scripts[said] = "fail 401"
        elif "You improve one text" in said:
            self.scripts[said] = self._reflection(said)
        else:
            self.answered.append((body["model"], system, said))
            line = self._measurement(body["model"], system, said)
            self.scripts[said] = line if body.get("tools") else in_text(line)
        return await super().complete(request)

    def _reflection(self, said: str) -> str:
        text = re.search(r"The text now:\n(.*?)\n\nThe agent", said, re.S)
        if not self.reflects or text is None or self.improves not in said:
            return "say I would not change that."
        return f"recite {json.dumps(f'<text>{text[1]} {RULE}</text>')}"

    def _measurement(self, model: str, system: str, said: str) -> str:
        found = re.fullmatch(r"Measure (\w+) (\d+), please\.", said)
        assert found is not None, said
        knows = self.follows in system and model not in self.stubborn
        if found[1] == "irrelevance" and not (knows and said in self.breaks):
            return "say Nothing fits."
        length = int(found[2]) if knows else 0
        return f'call tape_measure {{"length": {length}}}'


def in_text(line: str) -> str:
    """A call as a model writes it that has no native calls."""
    verb, _, rest = line.partition(" ")
    if verb != "call":
        return line
    name, _, arguments = rest.partition(" ")
    return f"recite {json.dumps(json.dumps({'name': name, 'arguments': json.loads(arguments)}))}"


def options(server: ModelServer, *more: str) -> argparse.Namespace:
    url = f"http://127.0.0.1:{server.port}"
    parser = argparse.ArgumentParser()
    parser.add_argument("--sealed", type=int, default=40)
    add_options(parser)
    return parser.parse_args(
        [
            *("--model", "qwen3-small", "--server", url),
            *("--other", "qwen3-large", "--other-server", f"{url}/v1"),
            *("--train", "8", "--validation", "24", "--runs", "60", "--examples", "2"),
            *more,
        ]
    )


async def measure(server: ModelServer, store: Path, *more: str) -> dict[str, Any]:
    return await asyncio.to_thread(measure_sealed, options(server, *more), planted_judge, store)


async def test_a_rule_that_helps_is_found_promoted_and_carries_over(tmp_path: Path) -> None:
    async with model_server(server := PlantedServer()):
        figures = await measure(server, tmp_path / "runs.jsonl")
    assert RULE in figures["sealed_promoted"]["prompt"]
    assert figures["sealed_cases"] == figures["sealed_other_cases"] == 40
    for prefix, model in (("sealed", "qwen3-small"), ("sealed_other", "qwen3-large")):
        assert figures[f"{prefix}_model"] == model
        assert (figures[f"{prefix}_before"], figures[f"{prefix}_after"]) == (0.25, 1.0)
        low, high = figures[f"{prefix}_interval"]
        assert 0.5 < low < 0.75 < high < 1
    assert "sealed_not_promoted" not in figures


async def test_another_model_can_be_tried_with_fewer_sealed_entries(tmp_path: Path) -> None:
    async with model_server(server := PlantedServer()):
        figures = await measure(server, tmp_path / "runs.jsonl", "--other-sealed", "12")
    assert (figures["sealed_cases"], figures["sealed_other_cases"]) == (40, 12)
    assert (figures["sealed_after"], figures["sealed_other_after"]) == (1.0, 1.0)
    asked = {model: sum(a[0] == model for a in server.answered) for model, *_ in server.answered}
    assert asked["qwen3-large"] == 24


async def test_a_result_that_another_model_does_not_profit_from_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = PlantedServer()
    server.stubborn = {"qwen3-large"}
    async with model_server(server):
        figures = await measure(server, tmp_path / "runs.jsonl")
    assert figures["sealed_after"] == 1.0
    assert figures["sealed_other_before"] == figures["sealed_other_after"] == 0.25
    assert "qwen3-large: 25.0% before, 25.0% with" in (out := capsys.readouterr().out)
    assert "no difference is shown" in out


@pytest.mark.parametrize("stop_after", [5, 30, 90, 180])
async def test_an_interrupted_measurement_continues_and_asks_nothing_twice(
    tmp_path: Path, stop_after: int
) -> None:
    async with model_server(whole := PlantedServer()):
        expected = await measure(whole, tmp_path / "whole.jsonl")
    store = tmp_path / "runs.jsonl"
    async with model_server(server := PlantedServer()):
        server.stop_after = stop_after
        with pytest.raises(SystemExit, match="start it again"):
            await measure(server, store)
        server.stop_after = None
        assert await measure(server, store) == expected
        assert sorted(server.answered) == sorted(whole.answered)
        before = len(server.asked)
        assert await measure(server, store) == expected
        assert len(server.asked) == before, "everything is stored"


async def test_a_candidate_that_breaks_an_entry_is_promoted_only_if_a_person_allows_it_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = split_entries(PlantedJudge().entries, SIZES | {Split.VALIDATION: 24})
    broken = next(e for e in splits[Split.VALIDATION] if e["category"] == "irrelevance")
    sealed = splits[Split.SEALED]
    server, store = PlantedServer(), tmp_path / "runs.jsonl"
    server.breaks = {question_of(broken)}
    async with model_server(server):
        assert await measure(server, store, "--keep-closed") == {}
        out = capsys.readouterr().out
        assert f"rejected: cases that passed before fail now: {broken['id']}" in out
        assert not StoredRuns(store).keys("opening")
        assert not any(question_of(e) in said for e in sealed for _, _, said in server.answered)
        figures = await measure(server, store)
        assert len(StoredRuns(store).keys("opening")) == 1
        assert figures["sealed_promoted"] is None
        assert figures["sealed_before"] == figures["sealed_after"] == 0.25
        assert figures["sealed_interval"] == [0.0, 0.0]
        beside = figures["sealed_not_promoted"]
        assert beside["sealed_after"] == beside["sealed_other_after"] == 1.0
        assert broken["id"] in beside["reason"]
        assert "(not promoted)" in capsys.readouterr().out
        allowed = await measure(server, store, "--allow", broken["id"])
    assert RULE in allowed["sealed_promoted"]["prompt"]
    assert allowed["sealed_after"] == 1.0


async def test_a_shipped_rule_is_found_without_a_model_that_reflects(tmp_path: Path) -> None:
    server, rule = PlantedServer(), shipped_rules()[1].text
    server.reflects, server.follows = False, rule
    async with model_server(server):
        figures = await measure(server, tmp_path / "runs.jsonl", "--proposers", "rules", "gepa")
    assert figures["sealed_promoted"] == {"notes": [rule]}
    assert (figures["sealed_before"], figures["sealed_after"]) == (0.25, 1.0)


async def test_examples_of_train_entries_are_found_without_a_model_that_reflects(
    tmp_path: Path,
) -> None:
    server = PlantedServer()
    server.reflects, server.follows = False, "Example: Measure parallel"
    async with model_server(server):
        figures = await measure(server, tmp_path / "runs.jsonl")
    notes = figures["sealed_promoted"]["notes"]
    assert len(notes) == len(CATEGORIES)
    assert (figures["sealed_before"], figures["sealed_after"]) == (0.25, 1.0)


async def test_the_tool_prompt_of_a_model_with_calls_in_text_evolves(tmp_path: Path) -> None:
    server = PlantedServer()
    server.improves = "what tells its model the tools"
    async with model_server(server):
        figures = await measure(
            server, tmp_path / "runs.jsonl", "--model", "qwen2.5-coder-small", "--examples", "0"
        )
    text = figures["sealed_promoted"]["tool_prompt"]
    assert text == f"{shipped_tool_prompt(CallStyle.JSON)} {RULE}"
    assert (figures["sealed_before"], figures["sealed_after"]) == (0.25, 1.0)
    other = figures["sealed_other_before"], figures["sealed_other_after"]
    assert other == (0.25, 0.25), "a model with native calls ignores it"


async def test_without_a_better_genome_nothing_changes(tmp_path: Path) -> None:
    server = PlantedServer()
    server.stubborn = {"qwen3-small", "qwen3-large"}
    async with model_server(server):
        figures = await measure(server, tmp_path / "runs.jsonl")
    assert figures["sealed_promoted"] is None and "sealed_not_promoted" not in figures
    assert figures["sealed_before"] == figures["sealed_after"] == 0.25


def test_no_question_is_in_two_splits_and_a_smaller_split_is_part_of_the_whole() -> None:
    entries = PlantedJudge().entries
    twin = {**entry_of("simple", 500), "question": entries[0]["question"]}
    more = [*entries, twin, *(entry_of("simple", 600 + n) for n in range(200))]
    whole = split_entries(more, SIZES)
    assert {split: len(found) for split, found in whole.items()} == dict(SIZES)
    questions = [question_of(entry) for found in whole.values() for entry in found]
    assert len(set(questions)) == 760
    for split, found in whole.items():
        counts = [sum(entry["category"] == c for entry in found) for c in CATEGORIES]
        assert counts == [SIZES[split] // 4] * 4
    small = split_entries(more, {Split.TRAIN: 6, Split.VALIDATION: 12, Split.SEALED: 7})
    for split, found in small.items():
        assert all(entry in whole[split] for entry in found)
    with pytest.raises(SystemExit, match="--sealed 501: choose a number from 1 to 500"):
        split_entries(more, SIZES | {Split.SEALED: 501})
    with pytest.raises(SystemExit, match="too few entries"):
        split_entries(entries[:100], SIZES)


def test_descriptions_are_searched_of_functions_that_recur_with_one_definition() -> None:
    other = {**FUNCTION, "description": "Other."}
    first, second = entry_of("simple", 1), entry_of("simple", 2)
    alone = {**first, "function": [{**FUNCTION, "name": "alone"}]}
    assert recurring_tools([first, second, alone], 2) == ["tape.measure"]
    assert recurring_tools([first, {**second, "function": [other]}], 2) == []


def test_an_example_has_the_first_right_value_of_each_argument() -> None:
    arguments = {"a": [1, 2], "left_out": ["", 5], "items": [[{"k": ["x", "y"]}], []]}
    assert first_value(arguments) == {"a": 1, "items": [{"k": "x"}]}
    assert example_of(entry_of("simple", 3)) == (
        'Example: Measure simple 3, please. -> [{"name": "tape_measure", '
        '"arguments": {"length": 3}}]'
    )
    assert "call none" in example_of(entry_of("irrelevance", 3))


def test_a_line_that_was_cut_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    store = StoredRuns(path)
    store.put(1, "run", "a")
    store.put(2, "run", "b")
    path.write_bytes(path.read_bytes()[:-5])
    again = StoredRuns(path)
    assert (again.get("run", "a"), again.get("run", "b")) == (1, None)
    again.put(3, "run", "b")
    last = StoredRuns(path)
    assert (last.get("run", "a"), last.get("run", "b")) == (1, 3)
    assert last.keys("run") == ["run/a", "run/b"]


def test_the_interval_of_a_paired_difference() -> None:
    def pairs(both: int, fixed: int, broken: int, neither: int) -> list[tuple[bool, bool]]:
        return [
            *[(True, True)] * both, *[(False, True)] * fixed,
            *[(True, False)] * broken, *[(False, False)] * neither,
        ]  # fmt: skip

    low, high = paired_interval(pairs(36, 12, 2, 0))
    assert (low, high) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    turned = paired_interval([(b, a) for a, b in pairs(36, 12, 2, 0)])
    assert turned == pytest.approx((-high, -low))
    same = paired_interval(pairs(250, 0, 0, 250))
    assert same[0] < 0 < same[1] and same[1] < 0.02
    few, many = paired_interval(pairs(4, 4, 1, 1)), paired_interval(pairs(400, 400, 100, 100))
    assert few[0] < 0 < many[0] and many[1] < few[1]


def test_without_weights_the_part_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert main(["--sealed"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "make test-weights" in out[0]
    figures = json.loads(out[-1])
    assert figures["sealed_cases"] is None and figures["sealed_interval"] is None
