"""The validation stage: real runs of both genomes, one verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from evoclaw.core.messages import is_object
from evoclaw.evolution.candidates import StageResult
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.evaluation import OpenRun
from evoclaw.evolution.gate.sequential_test import level_of
from evoclaw.evolution.gate.validation import ValidationSettings, cases_needed, validate
from tests.evolution.gate.planted_runs import case_of, planted

LEVEL = level_of(1, 0, 0.05)
QUICK = ValidationSettings(repeats=1, rechecks=8)
CASES = [case_of(f"v{number:02}") for number in range(30)]
HARD = {case.name: 0.0 if number < 20 else 1.0 for number, case in enumerate(CASES)}
SOLVED = dict.fromkeys(HARD, 1.0)


async def judged(
    candidate: OpenRun, current: OpenRun | None = None, cases: list[CaseFile] = CASES, **more: Any
) -> StageResult:
    known: dict[str, Any] = {
        "digest": "d",
        "level": LEVEL,
        "settings": QUICK,
        "current": current or planted(HARD),
    }
    return await validate(cases, candidate=candidate, **{**known, **more})


async def test_a_candidate_that_solves_failing_cases_and_breaks_none_passes() -> None:
    done = await judged(planted(SOLVED))
    assert (done.passed, done.reason) == (True, "")
    evidence = done.evidence
    assert (evidence["cases"], evidence["gain"], evidence["cost_factor"]) == (30, 20 / 30, 1.0)
    assert (evidence["index"], evidence["regressed"]) == (1, [])
    assert "scores" not in evidence


async def test_a_candidate_that_changes_nothing_is_stopped_early() -> None:
    cases = [case_of(f"v{number:03}") for number in range(100)]
    done = await judged(planted(lambda _: 1.0), planted(lambda _: 1.0), cases)
    assert not done.passed
    assert "not better by 10%" in done.reason
    assert isinstance(done.evidence["cases"], int)
    assert done.evidence["cases"] < 80


async def test_a_later_candidate_needs_more_evidence() -> None:
    done = await judged(planted(SOLVED), level=level_of(1_000, 0, 0.05))
    assert not done.passed
    assert "cannot show" in done.reason


async def test_one_case_that_passed_before_and_fails_now_fails_the_candidate() -> None:
    broken = planted({**SOLVED, "v29": 0.0})
    done = await judged(broken)
    assert (done.passed, done.evidence["regressed"]) == (False, ["v29"])
    assert done.reason == "cases that passed before fail now: v29"
    allowed = await judged(planted({**SOLVED, "v29": 0.0}), allowed=["v29"])
    assert (allowed.passed, allowed.evidence["regressed"]) == (True, ["v29"])


async def test_a_case_that_fails_by_chance_is_run_again_and_is_no_regression() -> None:
    noisy = {name: 0.85 if share else 0.0 for name, share in HARD.items()}
    better = {name: share or 1.0 for name, share in noisy.items()}
    for seed in range(5):
        done = await judged(planted(better, seed=seed), planted(noisy, seed=100 + seed))
        assert done.evidence.get("regressed", []) == []


async def test_a_candidate_that_costs_too_much_fails() -> None:
    done = await judged(planted(SOLVED, cost=0.4), planted(HARD, cost=0.1))
    assert (done.passed, done.reason) == (False, "it costs 4.00 times as much; at most 1.5")
    unknown = await judged(planted(SOLVED, cost=None), planted(HARD, cost=0.1))
    assert "cannot be compared" in unknown.reason
    assert (await judged(planted(SOLVED, cost=None), planted(HARD, cost=None))).passed


async def test_cases_that_the_record_does_not_answer_do_not_count_for_the_candidate() -> None:
    done = await judged(planted(SOLVED, argument="other"))
    assert not done.passed
    assert done.evidence["counted"] == 0
    half = ValidationSettings(repeats=1, min_coverage=0.0)
    assert (await judged(planted(SOLVED, argument="other"), settings=half)).passed


async def test_the_rates_of_both_genomes_have_their_coverage() -> None:
    other, right = planted(SOLVED, argument="other"), planted(HARD)
    half = ValidationSettings(repeats=2, min_coverage=0.0, rechecks=8)
    evidence = (await judged(other, right, settings=half)).evidence
    current, candidate = evidence["current"], evidence["candidate"]
    assert is_object(current) and is_object(candidate)
    assert (candidate["attempts"], candidate["coverage"], candidate["recorded"]) == (60, 0.0, 60)
    assert (current["attempts"], current["coverage"], current["recorded"]) == (60, 1.0, 60)
    without_calls = [case_of(f"v{n:02}", results=[], tools=[]) for n in range(30)]
    evidence = (await judged(planted(SOLVED), right, cases=without_calls)).evidence
    assert is_object(candidate := evidence["candidate"])
    assert (candidate["coverage"], candidate["recorded"]) == (None, 30)


async def test_too_few_cases_fail_with_what_to_do() -> None:
    done = await judged(planted(SOLVED), cases=CASES[:4])
    assert (done.passed, "there are 4 validation cases" in done.reason) == (False, True)


async def test_train_and_sealed_cases_are_never_run() -> None:
    ran: Counter[str] = Counter()
    others = [case_of("t", split="train"), case_of("s", split="sealed")]
    await judged(planted(SOLVED, on_run=lambda name, _: ran.update([name])), cases=CASES + others)
    assert set(ran) == set(SOLVED)


async def test_no_run_sees_files_of_another_run() -> None:
    seen: list[list[Path]] = []

    def leave_an_answer(name: str, workspace: Path) -> None:
        seen.append(list(workspace.iterdir()))
        (workspace / "answer.txt").write_text(name)

    await judged(planted(SOLVED, on_run=leave_an_answer), planted(HARD, on_run=leave_an_answer))
    assert len(seen) == 60
    assert not any(seen)


async def test_an_interrupted_validation_goes_on_where_it_was() -> None:
    progress: list[StageResult] = []
    whole = await judged(planted(SOLVED), on_progress=progress.append)
    assert [result.passed for result in progress] == [None] * 4
    ran: Counter[str] = Counter()
    again = planted(SOLVED, on_run=lambda name, _: ran.update([name]))
    resumed = await judged(again, resume=progress[1].evidence)
    assert resumed == whole
    assert len(ran) == 30 - 16
    other = level_of(2, 0, 0.05)
    ran.clear()
    await judged(again, resume=progress[1].evidence, level=other)
    assert len(ran) == 30, "scores of another test are not used"


async def test_the_order_of_the_cases_depends_on_the_candidate_only() -> None:
    orders: list[list[str]] = []
    for digest in ("a", "a", "b"):
        ran: list[str] = []
        opener = planted(SOLVED, on_run=lambda name, _, ran=ran: ran.append(name))
        settings = ValidationSettings(repeats=1, parallel=1, batch=1)
        await judged(opener, digest=digest, settings=settings)
        orders.append(ran)
    assert orders[0] == orders[1] != orders[2]


def test_how_many_improved_cases_the_first_candidate_needs() -> None:
    assert cases_needed(0.05) <= 12
    assert cases_needed(0.01) > cases_needed(0.05)
