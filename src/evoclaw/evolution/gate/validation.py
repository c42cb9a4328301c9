"""The validation stage: candidate and current genome on cases that no proposer has seen.

Both run each case equally often, at the same time, each run in a workspace of its own. The case
gives one difference: the candidate's share of passed runs minus the current genome's. The order of
the cases is random, from the candidate's digest. A candidate passes if

- the e-value of all differences reaches its share of the campaign's error rate,
- no case regressed: each case that the candidate passed less often is run further times with both
  genomes; if these runs confirm it, twice as many decide, by Fisher's exact test on them alone,
- its runs do not cost more than a factor,
- enough cases count: one whose calls the record could not answer counts only against it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.messages import JSON
from evoclaw.evolution.candidates import StageResult
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.evaluation import (
    Attempt,
    OpenRun,
    RecordedAnswers,
    evaluate_both,
    recorded_answers,
    wilson,
)
from evoclaw.evolution.gate.sequential_test import (
    CampaignLevel,
    Futility,
    fisher_less,
    level_of,
    mean,
)

SUSPICION_LEVEL = 0.05
"""The p-value of the first further runs at which a case is run once more."""


class ValidationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds of the validation stage."""

    error_rate: Annotated[float, Meta(gt=0, le=0.5)] = 0.05
    """The expected share of candidates that are no better, among all that pass."""
    repeats: Annotated[int, Meta(ge=1, le=100)] = 3
    """Runs of each case with each genome."""
    futility_gain: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """A candidate that is clearly not better by this share of the cases is stopped early."""
    futility_error: Annotated[float, Meta(gt=0, le=0.5)] = 0.02
    """The probability of stopping one that is."""
    rechecks: Annotated[int, Meta(ge=5, le=1_000)] = 16
    """Further runs of a case that the candidate passed less often, and half of those that decide
    whether it regressed."""
    regression_level: Annotated[float, Meta(ge=0.0001, le=0.5)] = 0.001
    """The p-value of the deciding runs at which a case regressed."""
    max_cost_factor: Annotated[float, Meta(ge=1)] = 1.5
    """The cost of the candidate's runs, as a multiple of the current genome's."""
    min_coverage: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """The share of calls that a record must answer."""
    min_cases: Annotated[int, Meta(ge=1)] = 10
    """Cases that must count."""
    batch: Annotated[int, Meta(ge=1, le=1_000)] = 8
    """Cases that run before it is decided whether to continue."""
    parallel: Annotated[int, Meta(ge=1, le=1_000)] = 4
    """Runs of each genome at the same time."""


class CaseScore(Struct, frozen=True, array_like=True):
    """How a case went with both genomes."""

    current: int
    """Passed runs."""
    candidate: int
    runs: int
    """Of each genome."""
    covered: bool
    """Whether the record answered enough calls of both."""
    current_cost: float | None
    candidate_cost: float | None
    current_turns: int
    candidate_turns: int
    current_answers: RecordedAnswers = RecordedAnswers()
    candidate_answers: RecordedAnswers = RecordedAnswers()

    @property
    def difference(self) -> float:
        """The candidate's share of passed runs minus the current genome's, from -1 to 1.

        What a record could not answer says nothing for the candidate.
        """
        found = (self.candidate - self.current) / self.runs
        return found if self.covered else min(found, 0.0)


def cases_needed(error_rate: float) -> int:
    """How many cases the first candidate of a campaign must improve, if no other case changes."""
    level = level_of(1, 0, error_rate)
    return next(n for n in range(1, 10_000) if not Futility(n, level.log_needed, 0.1, 0.1).reason())


async def validate(
    cases: Sequence[CaseFile],
    *,
    digest: str,
    level: CampaignLevel,
    current: OpenRun,
    candidate: OpenRun,
    settings: ValidationSettings | None = None,
    allowed: Collection[str] = (),
    resume: Mapping[str, JSON] | None = None,
    on_progress: Callable[[StageResult], None] = lambda result: None,
) -> StageResult:
    """Compare a candidate with the current genome.

    Args:
        cases: The cases of the agent; those of the validation split are run.
        digest: That of the candidate.
        level: What it may spend, from `campaign_level`. Its first open verdict must be in the
            lineage before this is called: that is what takes its index.
        current: Prepares runs with the current genome.
        candidate: Prepares runs with the candidate. Neither may reuse anything of other runs.
        settings: The thresholds.
        allowed: Cases that a person allowed to regress, by name.
        resume: The evidence of an interrupted validation of the same candidate and level.
        on_progress: Receives an open result after each batch, as `resume` takes it.
    """
    settings = settings or ValidationSettings()
    ordered = _in_order(cases, digest)
    if len(ordered) < settings.min_cases:
        return StageResult(
            passed=False,
            reason=f"there are {len(ordered)} validation cases; the gate needs at least "
            f"{settings.min_cases}: add some with `evoclaw cases add --split validation`",
            evidence=_level_evidence(level),
        )
    comparison = _Comparison(ordered, level, settings, _resumed(resume, level))
    if why := comparison.reason():
        return comparison.result(passed=False, reason=why)
    while batch := comparison.waiting():
        comparison.add(await _compare(batch, current, candidate, settings, settings.repeats))
        if why := comparison.reason():
            return comparison.result(passed=False, reason=why)
        on_progress(comparison.result(passed=None))
    if why := comparison.shortfall():
        return comparison.result(passed=False, reason=why)
    suspects = [case for case in ordered if comparison.scores[case.name].difference < 0]
    regressed = await _regressed(suspects, current, candidate, settings)
    evidence: dict[str, JSON] = {"rechecked": len(suspects), "regressed": list[JSON](regressed)}
    refused = [name for name in regressed if name not in allowed]
    reason = f"cases that passed before fail now: {', '.join(refused)}" if refused else ""
    return comparison.result(passed=not refused, reason=reason, more=evidence)


class _Comparison:
    """The scores so far, and what they amount to."""

    def __init__(
        self,
        ordered: Sequence[CaseFile],
        level: CampaignLevel,
        settings: ValidationSettings,
        scores: Mapping[str, CaseScore],
    ) -> None:
        self._ordered, self._level, self._settings = ordered, level, settings
        self._futility = Futility(
            len(ordered), level.log_needed, settings.futility_gain, settings.futility_error
        )
        self.scores: dict[str, CaseScore] = {}
        done = [case.name for case in ordered if case.name in scores]
        self.add({name: scores[name] for name in done})

    def waiting(self) -> Sequence[CaseFile]:
        """The next cases to run."""
        left = [case for case in self._ordered if case.name not in self.scores]
        return left[: self._settings.batch]

    def add(self, scores: Mapping[str, CaseScore]) -> None:
        """Count cases, in their order."""
        for name, score in scores.items():
            self.scores[name] = score
            self._futility.add(score.difference)

    def reason(self) -> str:
        """Why it makes no sense to run more cases; empty if it does."""
        return self._futility.reason() if len(self.scores) < len(self._ordered) else ""

    def shortfall(self) -> str:
        """What is missing when all cases have run; empty if nothing is."""
        settings, log_value = self._settings, self._futility.log_value
        counted = sum(score.covered for score in self.scores.values())
        if counted < settings.min_cases:
            return (
                f"only {counted} cases count: of the others, the records answered less than "
                f"{settings.min_coverage:.0%} of the calls; the gate needs {settings.min_cases}"
            )
        if log_value < self._level.log_needed:
            return (
                f"it is not shown to be better: e-value {math.exp(log_value):.3g}, "
                f"needed {math.exp(self._level.log_needed):.3g}"
            )
        factor = self._cost_factor()
        if factor is None:
            return "its cost cannot be compared: the price of a model is unknown"
        if factor > settings.max_cost_factor:
            return f"it costs {factor:.2f} times as much; at most {settings.max_cost_factor:g}"
        return ""

    def result(
        self, *, passed: bool | None, reason: str = "", more: Mapping[str, JSON] | None = None
    ) -> StageResult:
        """The verdict with its figures."""
        scores = self.scores.values()
        runs = sum(score.runs for score in scores)
        before = wilson(sum(score.current for score in scores), runs)
        after = wilson(sum(score.candidate for score in scores), runs)
        evidence: dict[str, JSON] = {
            **_level_evidence(self._level),
            "cases": len(self.scores),
            "of": len(self._ordered),
            "counted": sum(score.covered for score in scores),
            "worse": [name for name, score in self.scores.items() if score.difference < 0],
            "gain": mean([score.difference for score in scores]),
            "e_value": math.exp(min(self._futility.log_value, 700.0)),
            "current": msgspec.to_builtins(before)
            | sum((score.current_answers for score in scores), RecordedAnswers()).evidence(),
            "candidate": msgspec.to_builtins(after)
            | sum((score.candidate_answers for score in scores), RecordedAnswers()).evidence(),
            "cost_factor": self._cost_factor(),
            **(more or {}),
        }
        if passed is None:
            evidence["scores"] = msgspec.to_builtins(self.scores)
        return StageResult(passed=passed, reason=reason, evidence=evidence)

    def _cost_factor(self) -> float | None:
        """How much more the candidate costs; by turns if no price is known; None: unknown."""
        scores = self.scores.values()
        costs = [(score.current_cost, score.candidate_cost) for score in scores]
        before = [cost for cost, _ in costs if cost is not None]
        after = [cost for _, cost in costs if cost is not None]
        if not before and not after:
            before = [float(score.current_turns) for score in scores]
            after = [float(score.candidate_turns) for score in scores]
        if len(before) != len(costs) or len(after) != len(costs):
            return None
        if not sum(before):
            return None if sum(after) else 1.0
        return sum(after) / sum(before)


def _in_order(cases: Sequence[CaseFile], digest: str) -> list[CaseFile]:
    """The validation cases in the random order of a candidate."""
    found = sorted(
        (case for case in cases if case.case.split is Split.VALIDATION), key=lambda case: case.name
    )
    random.Random(digest).shuffle(found)
    return found


async def _regressed(
    suspects: Sequence[CaseFile],
    current: OpenRun,
    candidate: OpenRun,
    settings: ValidationSettings,
) -> list[str]:
    """The cases among those that went worse which did not do so by chance."""
    for rounds, level in ((1, SUSPICION_LEVEL), (2, settings.regression_level)):
        further = await _compare(suspects, current, candidate, settings, rounds * settings.rechecks)
        suspects = [
            case
            for case in suspects
            if (score := further[case.name])
            and fisher_less(score.candidate, score.current, score.runs) <= level
        ]
    return [case.name for case in suspects]


async def _compare(
    cases: Sequence[CaseFile],
    current: OpenRun,
    candidate: OpenRun,
    settings: ValidationSettings,
    repeats: int,
) -> dict[str, CaseScore]:
    """Run cases with both genomes, at the same time."""
    before, after = await evaluate_both(
        cases, current, candidate, repeat=repeats, parallel=settings.parallel
    )
    return {
        case.name: _score(
            before.attempts[at * repeats : (at + 1) * repeats],
            after.attempts[at * repeats : (at + 1) * repeats],
            settings.min_coverage,
        )
        for at, case in enumerate(cases)
    }


def _score(
    current: Sequence[Attempt], candidate: Sequence[Attempt], min_coverage: float
) -> CaseScore:
    return CaseScore(
        current=sum(attempt.passed for attempt in current),
        candidate=sum(attempt.passed for attempt in candidate),
        runs=len(candidate),
        covered=all(
            attempt.coverage is None or attempt.coverage >= min_coverage
            for attempt in (*current, *candidate)
        ),
        current_cost=_cost(current),
        candidate_cost=_cost(candidate),
        current_turns=sum(attempt.turns for attempt in current),
        candidate_turns=sum(attempt.turns for attempt in candidate),
        current_answers=recorded_answers(current),
        candidate_answers=recorded_answers(candidate),
    )


def _cost(attempts: Sequence[Attempt]) -> float | None:
    known = [attempt.cost for attempt in attempts if attempt.cost is not None]
    return sum(known) if len(known) == len(attempts) else None


def _level_evidence(level: CampaignLevel) -> dict[str, JSON]:
    return {"index": level.index, "discoveries": level.discoveries, "level": level.level}


def _resumed(evidence: Mapping[str, JSON] | None, level: CampaignLevel) -> dict[str, CaseScore]:
    """The scores of an interrupted validation; none if it was another one."""
    if not evidence or evidence.get("index") != level.index or "scores" not in evidence:
        return {}
    return msgspec.convert(evidence["scores"], dict[str, CaseScore])
