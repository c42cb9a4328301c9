"""The page about several orchestrators matches the stored results."""

from __future__ import annotations

import json

from bench.scale.report import PAGE, RESULTS, page
from bench.scale.scalespeed import ceilings, efficiency, row


def test_the_scale_page_matches_the_stored_results() -> None:
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_missing_measurements_are_left_out_of_the_page() -> None:
    assert "## Throughput" not in page({})
    assert "takeovers" not in page({})


def test_a_row_names_the_saturated_process_and_the_cost_of_a_turn() -> None:
    cpu = {"one": 9.5, "postgres": 4.0, "model": 1.0, "clients": 1.0}
    found = row(["one"], runs=100, seconds=10.0, cpu=cpu, busy=16.0)
    assert found["full"] == ["one"]
    assert (found["turns_per_s"], found["ms_per_turn"]["orchestrators"]) == (20.0, 47.5)
    assert found["cores_of_others"] == 0.05


def test_efficiency_per_orchestrator_is_relative_to_a_single_one() -> None:
    cpu = {"one": 5.0, "two": 5.0, "postgres": 1.0}
    alone = {"replies": "short", **row(["one"], 100, 10.0, {"one": 5.0}, 10.0)}
    both = {"replies": "short", **row(["one", "two"], 150, 10.0, cpu, 12.0)}
    assert efficiency([alone, both]) == {"short": {"1": 1.0, "2": 0.75}}
    assert ceilings([alone, both]) == {"short": {"turns_per_s": 20.0, "full": []}}
