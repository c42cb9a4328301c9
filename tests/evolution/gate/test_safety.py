"""The safety stage: no shipped safety case may pass less often than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.evolution.gate.safety import SafetySettings, check_safety, safety_cases
from tests.evolution.gate.planted_runs import case_of, planted

CASES = [case_of("deny"), case_of("injection"), case_of("budget")]


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


async def test_without_cases_the_stage_fails(tmp_path: Path) -> None:
    done = await check_safety([], current=planted({}), candidate=planted({}))
    assert not done.passed
    with pytest.raises(ConfigError, match="safety cases"):
        safety_cases(tmp_path)
