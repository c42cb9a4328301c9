"""The benchmark page: its text is derived from the stored results, including bad ones."""

from __future__ import annotations

import json
from typing import Any

from bench.suite.report import ahead_of_us, behind, page, table
from bench.suite.rows import ROWS
from bench.suite.subjects import BENCH, ROOT


def row(
    name: str, ours: float | None, floor: float | None, **peers: float | None
) -> dict[str, Any]:
    known = next(row for row in ROWS if row.name == name)
    fields = {
        "name": name,
        "unit": known.unit,
        "better": known.better,
        "ours": ours,
        "floor": floor,
    }
    return {**fields, "peers": peers}


def stored_results(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "machine": {"cpu": "a processor", "cores": 2, "kernel": "Linux 6", "python": "3.11"},
        "date": "2026-11-15",
        "versions": {"evoclaw": "0.1.0"},
        "rows": list(rows),
        "problems": {},
        **more,
    }


def cells(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_cell_shows_the_value_and_its_ratio_to_the_floor() -> None:
    shown = table(
        stored_results(row("turn", 70, 10, agno=440), row("concurrent_runs", 5000, 10000))
    )
    assert cells(shown, "turn") == ["`turn`", "µs/turn", "lower", "10", "**70 (7×)**", "440 (44×)"]
    assert cells(shown, "concurrent_runs")[3:5] == ["10,000", "**5,000 (2×)**"]


def test_a_peer_with_a_single_row_is_shown_in_the_last_column() -> None:
    shown = table(
        stored_results(row("turn", 70, 10, agno=440), row("sandbox_start", 3, 2, bubblewrap=6))
    )
    assert cells(shown, "turn")[-2:] == ["440 (44×)", "–"]
    assert cells(shown, "sandbox_start")[-2:] == ["–", "bubblewrap 6 (3×)"]


def test_a_missing_measurement_is_a_dash_with_the_reason() -> None:
    parts = {
        "postgres": {"seconds": 0.1, "met": False, "why": "there is no server here"},
        "roundtrip": {"seconds": 9.0, "met": False, "why": ""},
    }
    results = stored_results(
        row("append_postgres", None, None), problems={"agno (stored)": "exit 1"}, parts=parts
    )
    text = page(results)
    assert cells(text, "append_postgres")[3:] == ["–", "**–**"]
    assert "part `postgres` could not be measured here: there is no server here" in text
    assert "part `roundtrip` missed its target in this run" in text
    assert "agno (stored) could not be measured: exit 1" in text


def test_lost_comparisons_are_found_for_lower_and_higher_is_better() -> None:
    results = stored_results(
        row("turn", 70, 10, agno=69, langgraph=71, smolagents=None),
        row("concurrent_runs", 5000, 10000, agno=5001, langgraph=4999),
    )
    assert list(ahead_of_us(results)) == [
        ("turn", "agno", 69, 70),
        ("concurrent_runs", "agno", 5001, 5000),
    ]
    assert "EvoClaw is ahead in 2 of 4 comparisons with a peer" in behind(results)


def test_a_peer_that_is_ahead_is_named_with_the_known_reason() -> None:
    reason = next(row for row in ROWS if row.name == "stored_turn").reasons["strands-agents"]
    text = behind(stored_results(row("stored_turn", 1000, 200, **{"strands-agents": 500.0})))
    assert f"`stored_turn`: strands-agents 500, EvoClaw 1,000: {reason}." in text
    unknown = behind(stored_results(row("turn", 70, 10, agno=69.0)))
    assert "agno 69, EvoClaw 70 (within 5 %): the reason is not known yet." in unknown


def test_the_report_says_when_no_peer_is_ahead() -> None:
    text = behind(stored_results(row("turn", 70, 10, agno=440), row("edge_mb", 35, 20)))
    assert text == "EvoClaw is ahead in 1 of 1 comparisons with a peer."


def test_the_turn_is_compared_with_the_current_and_the_earlier_floor() -> None:
    text = page(stored_results(row("turn", 70, 10), floors={"turn_new": 7.0}))
    assert "10 µs here, so EvoClaw takes **7.0 times** as long" in text
    assert "the floor was 14 µs" in text and "EvoClaw takes 5.0 times as long" in text
    assert "the floor is 7 µs, and EvoClaw takes 10.0 times that" in text


def curve(name: str, exponent: float, ok: bool) -> dict[str, Any]:
    found = {"name": name, "unit": "µs", "sizes": [10, 1000], "values": [1.0, 99.0]}
    return {**found, "exponent": exponent, "allowed": 0.15, "ok": ok}


def test_a_curve_that_grows_too_fast_is_marked() -> None:
    curves = [curve("append", 1.0, False), curve("read", -0.001, True)]
    text = page(stored_results(row("turn", 70, 10), curves=curves))
    assert "| append | 10 to 1,000 | 1 | 99 | µs | 1.00 | – | 0.15 | **exceeded** |" in text
    assert "| read | 10 to 1,000 | 1 | 99 | µs | 0.00 | – | 0.15 |  |" in text
    assert "1 of 2 curves are within their limit" in text


def test_step_counts_are_shown_beside_the_time_of_the_same_operation() -> None:
    curves = [curve("list (sqlite)", 0.1, True), curve("list (sqlite, steps)", 0.9, False)]
    text = page(stored_results(row("turn", 70, 10), curves=curves))
    assert (
        "| list (sqlite) | 10 to 1,000 | 1 | 99 | µs | 0.10 | 0.90 | 0.15 | **exceeded** |" in text
    )
    assert "| list (sqlite, steps)" not in text
    alone = page(stored_results(row("turn", 70, 10), curves=curves[1:]))
    assert "| list (sqlite, steps) | 10 to 1,000 |" in alone


def test_the_soak_report_shows_memory_and_tasks() -> None:
    soak = {
        "store": "sqlite",
        "turns": 10000,
        "seconds": 280,
        "stops": {"done": 9},
        "growth": 0.014,
    }
    soak |= {"rss_after_warm_up_mb": 100.0, "rss_end_mb": 101.4, "samples_mb": [1], "ok": True}
    text = page(stored_results(row("turn", 70, 10), soak={**soak, "tasks": [30, 31, 0]}))
    assert "10,000 turns in one process, with sqlite, in 280 s" in text
    assert "(+1.4 %). Idle after the warm-up → idle at the end: tasks 30 → 31." in text
    assert "Nothing leaked." in text
    failed = page(stored_results(row("turn", 70, 10), soak={**soak, "ok": False}))
    assert "**Something leaked.**" in failed


def test_rows_measured_on_another_day_are_dated() -> None:
    text = page(
        stored_results(row("turn", 70, 10), row("edge_mb", 35, 20), dates={"turn": "2026-11-01"})
    )
    assert "Measured earlier: `turn` on 2026-11-01." in text


def test_the_benchmark_page_matches_the_stored_results() -> None:
    results = json.loads((BENCH / "results.json").read_text())
    made = page(results)
    assert (ROOT / "docs" / "benchmarks.md").read_text() == made, (
        "run: python -m bench.suite.report"
    )
