"""The safety stage: no shipped safety case may pass less often than before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.evolution.candidates import StageResult
from evoclaw.evolution.gate.safety import SafetySettings, check_safety, safety_cases
from tests.evolution.gate.planted_runs import case_of, planted

CASES = [case_of("deny"), case_of("injection"), case_of("budget")]


class Stopped(Exception):
    """After a batch."""

    def __init__(self, result: StageResult) -> None:
        super().__init__()
        self.result = result


def test_the_shipped_cases_are_valid_and_cover_three_kinds() -> None:
    cases = safety_cases()
    kinds = [case.name.split("-")[0] for case in cases]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "injection": 8, "deny": 6, "budget": 2,
    }  # fmt: skip
    assert all(case.workspace is None or case.workspace.is_dir() for case in cases)


async def test_a_case_that_falls_fails_the_candidate_and_is_named() -> None:
    safe = planted(lambda _: 1.0)
    assert (await check_safety(CASES, current=safe, candidate=safe)).passed
    unsafe = planted(lambda name: 0.0 if name == "injection" else 1.0)
    done = await check_safety(CASES, current=safe, candidate=unsafe)
    assert (done.passed, done.evidence["fallen"]) == (False, ["injection"])
    assert done.reason == "safety cases that it passes less often: injection"


async def test_a_case_that_falls_only_sometimes_fails_the_candidate() -> None:
    settings = SafetySettings(repeats=4)
    half = planted(lambda _: 0.5)
    done = await check_safety(
        CASES, current=planted(lambda _: 1.0), candidate=half, settings=settings
    )
    assert not done.passed


async def test_a_case_that_both_fail_is_reported_and_does_not_fail_the_candidate() -> None:
    bad = planted(lambda name: float(name != "deny"))
    done = await check_safety(CASES, current=bad, candidate=bad)
    assert (done.passed, done.evidence["failed_with_both"]) == (True, ["deny"])


async def test_an_interrupted_stage_continues_and_judges_as_a_whole_one() -> None:
    cases = [case_of(f"c{n}") for n in range(6)]
    settings, runs = SafetySettings(repeats=2, rechecks=3, batch=2), list[str]()
    current = planted(lambda name: float(name != "c1"), on_run=lambda name, _: runs.append(name))
    unsafe = planted(
        lambda name: float(name not in ("c1", "c2", "c5")),
        on_run=lambda name, _: runs.append(name),
    )
    whole = await check_safety(cases, current=current, candidate=unsafe, settings=settings)
    assert whole.evidence == {"cases": 6, "fallen": ["c2", "c5"], "failed_with_both": ["c1"]}
    expected, done, batches = Counter(runs), StageResult(passed=None), 0
    runs.clear()

    def stop(result: StageResult) -> None:
        raise Stopped(result)

    while done.passed is None:
        batches += 1
        try:
            done = await check_safety(
                cases, current=current, candidate=unsafe, settings=settings,
                resume=done.evidence, on_progress=stop,
            )  # fmt: skip
        except Stopped as stopped:
            done = stopped.result
    assert (done, Counter(runs)) == (whole, expected)
    assert batches == 5, "three of two cases, and one of each case that runs further"


async def test_the_runs_before_an_interruption_count_against_the_candidate() -> None:
    safe, half = planted(lambda _: 1.0), {"scores": {"deny": [2, 1, 2], "removed": [2, 0, 2]}}
    done = await check_safety(CASES, current=safe, candidate=safe, resume=half)
    assert (done.passed, done.evidence["fallen"]) == (False, ["deny"])


async def test_without_cases_the_stage_fails(tmp_path: Path) -> None:
    done = await check_safety([], current=planted({}), candidate=planted({}))
    assert not done.passed
    with pytest.raises(ConfigError, match="safety cases"):
        safety_cases(tmp_path)
