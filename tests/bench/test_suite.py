"""The suite of benchmarks: its rows fit together, and what a part finds is put where it belongs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.suite.parts import PARTS, Outcome, Part, figure, run_part
from bench.suite.results import merged, row_of
from bench.suite.rows import LOOP_ROWS, PART_ROWS, ROWS, Row
from bench.suite.samples import Samples
from bench.suite.subjects import ROOT, Subject

from tests.support.waiting import until_sync

EDGE_CALL = next(row for row in ROWS if row.name == "edge_call")
SANDBOX = next(row for row in ROWS if row.name == "sandbox_start")


def program(code: str, seconds: float = 30.0) -> Part:
    return Part("roundtrip", ("-c", code), seconds=seconds)


def test_every_row_has_a_unique_name_and_a_part_that_measures_it() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    names = {part.name for part in PARTS}
    assert all(row.kind in names and all(row.figures) for row in PART_ROWS)
    assert not any(row.kind in names or any(row.figures) for row in LOOP_ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_reasons_are_given_only_for_peers_of_the_row(row: Row) -> None:
    assert set(row.reasons) <= {*row.peers, *row.others}


def test_a_part_is_selected_by_one_of_its_rows_or_by_its_name() -> None:
    by_name = {part.name: part for part in PARTS}
    assert by_name["roundtrip"].is_wanted("edge_call_64")
    assert not by_name["roundtrip"].is_wanted("edge_mb")
    assert by_name["growth"].is_wanted("growth") and not by_name["growth"].is_wanted("turn")
    assert all(part.is_wanted("") for part in PARTS)


def test_the_last_line_of_a_part_is_its_result() -> None:
    done = run_part(program("print('hello'); print('{\"a\": 1}')"), quick=False)
    assert (done.figures, done.met, done.why) == ({"a": 1}, True, "")


def test_a_part_that_misses_its_target_still_has_figures() -> None:
    done = run_part(program("print('{\"a\": 1}'); raise SystemExit(1)"), quick=False)
    assert (done.figures, done.met, done.why) == ({"a": 1}, False, "")


def test_a_part_that_cannot_run_says_why_without_paths() -> None:
    done = run_part(program("raise SystemExit('no server in /usr/lib/somewhere')"), quick=False)
    assert (done.figures, done.why) == ({}, "no server in <path>")
    assert run_part(program("raise SystemExit(1)"), quick=False).why == "no output"
    assert run_part(program("print('{broken')"), quick=False).why == "the last line is not JSON"
    assert run_part(program("print(1)"), quick=False).why == "the last line is not a JSON object"


def test_a_part_that_times_out_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import os, time\n"
        "child = os.fork()\n"
        f"if child: open({str(note)!r}, 'w').write(str(child))\n"
        "time.sleep(600)\n"
    )
    done = run_part(Part("roundtrip", ("-S", "-c", code), seconds=4.0), quick=False)
    assert done.why == "took longer than 4 s"
    child = int(note.read_text())
    until_sync(lambda: _is_dead(child), say="the child is dead")


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_figures_are_looked_up_by_name_and_dotted_path() -> None:
    figures = {"a": 1, "read/trusted": {"fresh": 12.34567}, "none": None, "yes": "no"}
    assert figure(figures, "a") == 1
    assert figure(figures, "read/trusted.fresh") == 12.35
    assert figure(figures, "none") is None and figure(figures, "yes") is None
    assert figure(figures, "a.b") is None and figure(figures, "missing") is None


def test_a_part_row_takes_the_figures_of_its_part() -> None:
    outcome = Outcome(1.0, {"durable_1_per_s": 400, "bare_1_per_s": 1300})
    made = row_of(EDGE_CALL, Samples(), {"roundtrip": outcome})
    assert (made["ours"], made["floor"], made["peers"]) == (
        400,
        1300,
        {"aiomqtt": None, "MCP SDK": None},
    )
    sandbox = Outcome(1.0, {"warm_ms": 2, "bare_ms": 1, "cold_bubblewrap_ms": 5})
    assert row_of(SANDBOX, Samples(), {"sandboxes": sandbox})["peers"] == {"bubblewrap": 5}
    assert row_of(SANDBOX, Samples(), {})["ours"] is None


def test_a_loop_row_takes_the_median_of_each_subject() -> None:
    samples, turn = Samples(), next(row for row in ROWS if row.name == "turn")
    samples.values["turn", "ours"] += [70, 72, 300]
    samples.values["turn", "floor"] += [9]
    samples.values["turn", "agno"] += [440]
    made = row_of(turn, samples, {})
    assert (made["ours"], made["floor"], made["peers"]["agno"]) == (72, 9, 440)
    assert made["peers"]["langgraph"] is None


def test_a_subject_that_failed_is_not_measured_again(tmp_path: Path) -> None:
    script = tmp_path / "subject.py"
    script.write_text(
        "import sys\n"
        f"open({str(tmp_path / 'asked')!r}, 'a').write(sys.argv[1] + ' ')\n"
        "print('{\"turn\": [3, 1, 2]}' if sys.argv[1] == 'turn' else sys.exit('cannot'))\n"
    )
    samples, subject = Samples(), Subject("agno", Path(sys.executable), script)
    for _ in range(2):
        samples.take(subject, "stored")
        samples.take(subject, "loop", "turn")
    assert samples.problems == {"agno (stored)": "exit 1: cannot"}
    assert samples.value("turn", "agno") == 2
    assert (tmp_path / "asked").read_text().split() == ["stored", "turn", "turn"]


def results(date: str, rows: dict[str, float], **more: Any) -> dict[str, Any]:
    made = [{"name": name, "ours": value} for name, value in rows.items()]
    return {"date": date, "rows": made, "problems": {}, "versions": {}, **more}


def test_new_measurements_replace_the_stored_ones() -> None:
    before = results(
        "2026-11-01",
        {"edge_mb": 1, "turn": 2, "no_row_any_more": 3},
        versions={"agno": "1", "NATS": "2"},
        parts={"many": {"why": ""}},
        problems={"agno (loop)": "exit 1", "openai": "not installed: x", "agno (stored)": "exit 2"},
        soak={"ok": True},
    )
    now = results("2026-11-15", {"turn": 20, "import_s": 5}, versions={"agno": "2", "openai": "3"})
    made = merged(before, now)
    assert [(row["name"], row["ours"]) for row in made["rows"]] == [
        ("turn", 20),
        ("import_s", 5),
        ("edge_mb", 1),
    ]
    assert made["date"] == "2026-11-15" and made["dates"] == {"edge_mb": "2026-11-01"}
    assert made["versions"] == {"agno": "2", "NATS": "2", "openai": "3"}
    assert made["problems"] == {"agno (stored)": "exit 2"}
    assert made["parts"] == {"many": {"why": ""}} and made["soak"] == {"ok": True}
    again = merged(made, results("2026-11-16", {"import_s": 6}))
    assert again["dates"] == {"edge_mb": "2026-11-01", "turn": "2026-11-15"}


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "bench" / "run.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=os.sep)


def test_an_unknown_row_is_refused_with_the_known_rows() -> None:
    done = started("--only", "nothing_of_that_name")
    assert done.returncode == 2 and "no row starts with" in done.stderr
    assert "edge_call_64" in done.stderr and "growth" in done.stderr


@pytest.mark.parametrize("less", ["--quick", "--no-peers"])
def test_incomplete_measurements_are_not_written(less: str) -> None:
    assert started(less, "--write").returncode == 2


def test_the_command_measures_evoclaw_and_the_floor() -> None:
    done = started("--only", "tool_schema", "--no-peers", "--quick")
    made = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in made["rows"]] == ["tool_schema"]
    assert made["rows"][0]["ours"] > 0 and made["rows"][0]["floor"] > 0
    assert made["machine"]["cores"] and made["date"] and made["versions"]["evoclaw"]
