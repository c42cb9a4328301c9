"""What an agent's evolution does next, decided from its lineage alone.

A process that was killed anywhere reads the lineage and continues; what a step spends is recorded
with its entry, so the budget of a day survives as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.messages import JSON, is_object
from evoclaw.evolution.candidates import (
    Candidate,
    CandidateState,
    Stage,
    fold_candidates,
)
from evoclaw.evolution.lineage_entries import LineageEntry

DAY_S = 86_400.0
SPENT = "spent"
"""The key of what a step spent, in the evidence of its entry."""
REQUESTED = "requested"
"""The key that makes an entry a person's request for a round, in its evidence."""
NEEDED_RUNS = "needed_runs"
"""The key of the runs that a round of proposers had no budget for, in the evidence of its entry."""
UNANSWERED = "unanswered"
"""The key of the `model` of the settings that did not answer proposers, in the same evidence."""


class Spent(Struct, frozen=True):
    """Runs of cases, and what they and the proposers' questions cost."""

    runs: int = 0
    cost: float | None = 0.0
    """In US dollars; null if a price is unknown."""

    def __add__(self, other: Spent) -> Spent:
        both = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Spent(self.runs + other.runs, both)

    def evidence(self) -> dict[str, JSON]:
        """How an entry records it."""
        return {SPENT: {"runs": self.runs, "cost": self.cost}}


class Watch(Struct, frozen=True):
    """Compare the runs after a promotion with those before it."""

    candidate: Candidate
    since: float
    """When it was promoted."""


class Judge(Struct, frozen=True):
    """Have a stage of the gate judge a candidate."""

    candidate: Candidate
    stage: Stage


class Promote(Struct, frozen=True):
    """Make a candidate current: all stages passed."""

    candidate: Candidate


class Propose(Struct, frozen=True):
    """Ask the proposers for candidates."""


class Wait(Struct, frozen=True):
    """Nothing can be done now."""

    reason: str


CampaignStep = Watch | Judge | Promote | Propose | Wait


def spent_today(entries: Sequence[LineageEntry], now: float) -> Spent:
    """What evolution spent since midnight (UTC)."""
    start = now - now % DAY_S
    return sum((_spent(entry) for entry in entries if entry.at >= start), Spent())


def budget_problem(settings: AgentEvolution, spent: Spent, runs: int = 1) -> str:
    """Why so many more runs are not in the budget of today; empty if they are."""
    most = settings.max_runs_per_day
    if runs > (left := most - spent.runs):
        if left <= 0:
            return f"the {most} runs of today are spent"
        if runs > most:
            return f"{runs} runs are needed at a time, and max_runs_per_day is {most}; raise it"
        return f"{runs} runs are needed, and {left} of the {most} runs of today are left"
    limit = settings.max_cost_per_day
    if limit is None:
        return ""
    if spent.cost is None:
        return (
            "the price of a model is unknown, so max_cost_per_day cannot be kept; remove the limit "
            "or choose a model with a known price"
        )
    return f"the {limit:g} dollars of today are spent" if spent.cost >= limit else ""


def next_steps(
    entries: Sequence[LineageEntry], settings: AgentEvolution, now: float
) -> list[CampaignStep]:
    """What to do next, in order: a step that finds nothing new leaves the turn to the next one."""
    candidates = fold_candidates(entries)
    steps: list[CampaignStep] = []
    versions = [entry for entry in entries if entry.version is not None]
    if versions and (last := versions[-1]).kind == "change" and last.candidate in candidates:
        steps.append(Watch(candidates[last.candidate], last.at))
    for candidate in candidates.values():
        if candidate.state is CandidateState.PASSED:
            return [*steps, Promote(candidate)]
    opened = [c for c in candidates.values() if c.state is CandidateState.OPEN]
    spent = spent_today(entries, now)
    if opened:
        judgements, problem = _judgements(opened, settings, spent)
        waiting = ", ".join(str(c.number) for c in opened if c.stage is Stage.APPROVAL)
        reasons = [f"candidate {waiting} waits for an approval" if waiting else "", problem]
        why = "; ".join(filter(None, reasons)) or "candidates are judged"
        return [*steps, *judgements, Wait(why)]
    if problem := budget_problem(settings, spent):
        return [*steps, Wait(problem)]
    ended = _ended_round(entries, settings, spent, now)
    if ended is None:
        return [*steps, Propose()]
    if ended.reason:
        return [*steps, Wait(f"the proposers ended early today: {ended.reason}")]
    return [*steps, Wait("the proposers have nothing more today")]


def describe_next(steps: Sequence[CampaignStep]) -> str:
    """What is done next, and why nothing else is, for people; from `next_steps`."""
    found: list[str] = []
    for step in steps:
        match step:
            case Judge(candidate, stage):
                found.append(f"next: judge candidate {candidate.number} at the stage {stage}")
            case Promote(candidate):
                found.append(f"next: promote candidate {candidate.number}")
            case Propose():
                found.append("next: ask the proposers")
            case Wait(reason):
                found.append(reason)
            case Watch():
                continue  # it only looks
    return "; ".join(found)


def _ended_round(
    entries: Sequence[LineageEntry], settings: AgentEvolution, spent: Spent, now: float
) -> LineageEntry | None:
    """The last round of proposers, if another one would end as it did.

    It was today, the genome is still the one they saw, no other round was requested since, and the
    budget allows nothing more. If the reflecting model did not answer, it is the same.
    """
    start = now - now % DAY_S
    for entry in reversed(entries):
        if entry.version is not None or entry.at < start:
            return None
        if entry.kind == "campaign":
            if REQUESTED in entry.scores:
                return None
            needed = entry.scores.get(NEEDED_RUNS)
            is_in_budget = isinstance(needed, int) and not budget_problem(settings, spent, needed)
            is_other_model = entry.scores.get(UNANSWERED, settings.model) != settings.model
            return None if is_in_budget or is_other_model else entry
    return None


def _judgements(
    opened: Sequence[Candidate], settings: AgentEvolution, spent: Spent
) -> tuple[list[CampaignStep], str]:
    """The stages that can be judged now, and why the budget does not allow the others.

    Only one candidate at a time is used by real sessions.
    """
    found: list[CampaignStep] = []
    problem, in_use = "", False
    for candidate in opened:
        stage = candidate.stage
        if stage is None or stage is Stage.APPROVAL:
            continue
        if stage in (Stage.SHADOW, Stage.CANARY):
            if in_use:
                continue
            in_use = True
        if why := _stage_problem(stage, settings, spent):
            problem = problem or why
            continue
        found.append(Judge(candidate, stage))
    return found, problem


def _stage_problem(stage: Stage, settings: AgentEvolution, spent: Spent) -> str:
    """Why the budget does not allow the next runs of a stage; empty if it does."""
    if stage in (Stage.STATIC, Stage.CANARY):
        return ""  # they run no case
    runs = settings.runs_of_case if stage is Stage.VALIDATION else 1
    return budget_problem(settings, spent, runs)


def _spent(entry: LineageEntry) -> Spent:
    found = entry.scores.get(SPENT)
    if not is_object(found):
        return Spent()
    runs, cost = found.get("runs"), found.get("cost")
    return Spent(
        runs if isinstance(runs, int) else 0,
        float(cost) if isinstance(cost, int | float) else None,
    )
