"""What evolution does next, from the lineage alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.evolution.campaign import (
    CampaignStep,
    Judge,
    Promote,
    Propose,
    Spent,
    Wait,
    Watch,
    budget_problem,
    next_steps,
    spent_today,
)
from evoclaw.evolution.candidates import STAGES, Stage
from evoclaw.evolution.lineage_entries import LineageEntry
from tests.support.evolution_engines import ON

DAY = 86_400.0


def entry(number: int, kind: Any, at: float = 100.0, **fields: Any) -> LineageEntry:
    return LineageEntry(
        v=1, agent="helper", number=number, prev="", at=at, key="", kind=kind, digest="d",
        by="numbers", **fields,
    )  # fmt: skip


def verdicts(candidate: int, *stages: Stage, first: int = 2) -> list[LineageEntry]:
    return [
        entry(first + at, "verdict", candidate=candidate, stage=stage, passed=True)
        for at, stage in enumerate(stages)
    ]


def steps(*entries: LineageEntry, settings: AgentEvolution = ON, now: float = 200.0) -> Any:
    return next_steps(entries, settings, now)


def only(found: list[CampaignStep]) -> CampaignStep:
    assert len(found) == 1, found
    return found[0]


def test_it_starts_by_asking_the_proposers() -> None:
    assert only(steps()) == Propose()


@pytest.mark.parametrize("number", range(len(STAGES)))
def test_a_candidate_goes_through_the_stages_in_order(number: int) -> None:
    found = steps(entry(1, "proposal", parent=""), *verdicts(1, *STAGES[:number]))
    if STAGES[number] is Stage.APPROVAL:
        assert only(found) == Wait("candidate 1 waits for an approval")
    else:
        first = found[0]
        assert isinstance(first, Judge)
        assert (first.candidate.number, first.stage) == (1, STAGES[number])


def test_a_candidate_that_passed_all_stages_is_promoted_before_anything_else() -> None:
    found = only(
        steps(
            entry(1, "proposal"),
            *verdicts(1, *STAGES),
            entry(9, "proposal"),
        )
    )
    assert isinstance(found, Promote)
    assert found.candidate.number == 1


def test_a_promoted_candidate_is_watched_and_others_are_proposed_again() -> None:
    found = steps(
        entry(1, "proposal"),
        *verdicts(1, *STAGES),
        entry(8, "campaign"),
        entry(9, "change", version=1, candidate=1, at=150.0),
    )
    assert isinstance(found[0], Watch)
    assert found[0].since == 150.0
    assert found[1:] == [Propose()], "the proposers saw another genome"
    taken_back = entry(10, "rollback", version=2, restored=0, candidate=1)
    after = steps(entry(1, "proposal"), *verdicts(1, *STAGES), found_change(), taken_back)
    assert not any(isinstance(step, Watch) for step in after)


def found_change() -> LineageEntry:
    return entry(9, "change", version=1, candidate=1)


def test_the_proposers_are_asked_once_a_day() -> None:
    asked = entry(1, "campaign", at=100.0)
    assert only(steps(asked)) == Wait("the proposers have nothing more today")
    assert only(steps(asked, now=DAY + 1)) == Propose()
    changed = entry(2, "change", version=1, at=150.0)
    assert only(steps(asked, changed)) == Propose(), "a person changed the genome"


def test_a_persons_request_has_the_proposers_asked_again_until_the_round_ends() -> None:
    asked = entry(1, "campaign")
    request = entry(2, "campaign", at=110.0, scores={"requested": True})
    assert only(steps(asked, request)) == Propose()
    judged = steps(asked, request, entry(3, "proposal"))
    assert isinstance(judged[0], Judge), "the process was killed during the round"
    rejected = entry(4, "verdict", candidate=3, stage=Stage.STATIC, passed=False)
    assert only(steps(asked, request, entry(3, "proposal"), rejected)) == Propose()
    assert isinstance(only(steps(asked, request, entry(3, "campaign", at=120.0))), Wait)


def test_proposers_that_the_budget_ended_are_asked_again_once_it_allows_more() -> None:
    short = replace(ON, max_runs_per_day=4, repeats=1)
    scores = {"needed_runs": 6, "spent": {"runs": 0, "cost": 0.0}}
    why = budget_problem(short, Spent(), 6)
    assert why == "6 runs are needed at a time, and max_runs_per_day is 4; raise it"
    asked = entry(1, "campaign", reason=f"gepa: {why}", scores=scores)
    waiting = Wait(f"the proposers ended early today: gepa: {why}")
    assert only(steps(asked, settings=short)) == waiting
    assert only(steps(asked, settings=replace(short, max_runs_per_day=6))) == Propose()
    spent = entry(2, "evaluation", scores={"spent": {"runs": 1, "cost": 0.0}})
    few = replace(short, max_runs_per_day=6)
    assert isinstance(only(steps(asked, spent, settings=few)), Wait), "only 5 are left"


def test_the_budget_of_a_day_is_counted_from_the_lineage() -> None:
    spent = {"spent": {"runs": 7, "cost": 0.5}}
    entries = [entry(1, "evaluation", scores=spent), entry(2, "campaign", scores=spent)]
    assert spent_today(entries, 200.0) == Spent(14, 1.0)
    assert spent_today(entries, DAY + 200.0) == Spent()
    few = replace(ON, max_runs_per_day=14)
    assert only(steps(entries[0], entries[1], settings=few)) == Wait(
        "the 14 runs of today are spent"
    )
    cheap = replace(ON, max_cost_per_day=1.0)
    assert "1 dollars of today are spent" in budget_problem(cheap, Spent(1, 1.0))
    assert "price of a model is unknown" in budget_problem(cheap, Spent(1, None))
    assert budget_problem(ON, Spent(1, None)) == "", "money is not limited"


def test_a_spent_budget_stops_stages_that_run_cases_and_no_others() -> None:
    few = replace(ON, max_runs_per_day=1)
    spent = entry(1, "evaluation", scores={"spent": {"runs": 1, "cost": 0.0}})
    proposal = entry(2, "proposal")
    static = steps(spent, proposal, settings=few)
    assert isinstance(static[0], Judge)
    validation = steps(spent, proposal, *verdicts(2, Stage.STATIC, first=3), settings=few)
    assert only(validation) == Wait("the 1 runs of today are spent")
    canary = steps(spent, proposal, *verdicts(2, *STAGES[:5], first=3), settings=few)
    assert isinstance(canary[0], Judge)


def test_real_sessions_use_one_candidate_at_a_time() -> None:
    two = [entry(1, "proposal"), *verdicts(1, *STAGES[:5]), entry(7, "proposal")]
    two += verdicts(7, *STAGES[:5], first=8)
    judged = [step.candidate.number for step in steps(*two) if isinstance(step, Judge)]
    assert judged == [1]
