"""Bounds: what the runs of a candidate may be worse in than those before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from evoclaw.evolution.rollout import RunFigures, broken_bound, judge_canary
from tests.support.evolution_engines import ON

SETTINGS = replace(ON, canary_runs=10)
BEFORE = RunFigures(runs=100, failed=5, denied=10, cost=10.0)


def test_a_candidate_passes_after_enough_runs_within_the_bounds() -> None:
    few = RunFigures(runs=9, failed=1, denied=2, cost=1.0)
    assert judge_canary(few, BEFORE, SETTINGS).passed is None
    done = judge_canary(replace(few, runs=10), BEFORE, SETTINGS)
    assert (done.passed, done.reason) == (True, "")
    assert done.evidence["share"] == SETTINGS.canary_share


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (RunFigures(runs=2, failed=2), "2 of 2 runs failed, 5 of 100 before"),
        (RunFigures(runs=1, denied=7), "7 calls were denied in 1 runs, 10 of 100 before"),
        (RunFigures(runs=1, cost=1.6), "1 runs cost 1.6000 dollars, 10.0000 for 100 before"),
        (RunFigures(runs=3, bad=3), "people rated 3 of 3 runs bad"),
    ],
)
def test_a_broken_bound_fails_at_once(seen: RunFigures, why: str) -> None:
    result = judge_canary(seen, BEFORE, SETTINGS)
    assert (result.passed, result.reason) == (False, why)


def test_without_runs_before_the_bounds_are_absolute() -> None:
    nothing = RunFigures()
    assert broken_bound(RunFigures(runs=1, failed=1), nothing, SETTINGS, 10) == ""
    assert "no runs before" in broken_bound(RunFigures(runs=2, failed=2), nothing, SETTINGS, 10)
    assert broken_bound(RunFigures(runs=1, cost=99.0), nothing, SETTINGS, 10) == "", "unknown"
