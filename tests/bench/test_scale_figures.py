"""The page of several orchestrators: made from the figures that are kept, and up to date."""

from __future__ import annotations

import json

from bench.scale.figures import PAGE, RESULTS, page
from bench.scale.scalespeed import ceilings, efficiency, row


def test_the_page_is_what_the_figures_make() -> None:
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_what_was_not_measured_is_not_told() -> None:
    assert "## One, two, three" not in page({})
    assert "take-overs" not in page({})


def test_a_row_names_what_is_full_and_what_a_turn_costs() -> None:
    cpu = {"one": 9.5, "postgres": 4.0, "model": 1.0, "clients": 1.0}
    found = row(["one"], runs=100, seconds=10.0, cpu=cpu, busy=16.0)
    assert found["full"] == ["one"]
    assert (found["turns_per_s"], found["ms_per_turn"]["orchestrators"]) == (20.0, 47.5)
    assert found["cores_of_others"] == 0.05


def test_the_share_of_each_orchestrator_is_told_beside_one_alone() -> None:
    cpu = {"one": 5.0, "two": 5.0, "postgres": 1.0}
    alone = {"replies": "short", **row(["one"], 100, 10.0, {"one": 5.0}, 10.0)}
    both = {"replies": "short", **row(["one", "two"], 150, 10.0, cpu, 12.0)}
    assert efficiency([alone, both]) == {"short": {"1": 1.0, "2": 0.75}}
    assert ceilings([alone, both]) == {"short": {"turns_per_s": 20.0, "full": []}}
