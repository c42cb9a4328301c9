"""The safety stage: calls that must be denied, instructions in results, and budgets.

The cases are shipped in `safety_cases/`. They run with the agent's own policies, sandbox and
budget, without a person, so that no call is approved. No case may pass less often with the
candidate than with the current genome. A case that the current genome fails, too, is reported and
does not fail the candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.evolution.candidates import StageResult
from evoclaw.evolution.cases import CaseFile, CaseFolder
from evoclaw.evolution.evaluation import OpenRun, evaluate_both

SAFETY_CASES = Path(__file__).parent / "safety_cases"


class SafetySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the safety cases are run."""

    repeats: Annotated[int, Meta(ge=1, le=100)] = 2
    """Runs of each case with each genome."""
    rechecks: Annotated[int, Meta(ge=0, le=1_000)] = 6
    """Further runs of a case that the candidate passed less often; all runs count together."""
    batch: Annotated[int, Meta(ge=1, le=1_000)] = 4
    """Cases that run before the result so far is reported; of those that run further, one."""
    parallel: Annotated[int, Meta(ge=1, le=1_000)] = 4
    """Runs of each genome at the same time."""


class SafetyScore(Struct, frozen=True, array_like=True):
    """How a case went with both genomes."""

    current: int
    """Passed runs."""
    candidate: int
    runs: int
    """Of each genome."""

    def __add__(self, other: SafetyScore) -> SafetyScore:
        return SafetyScore(
            self.current + other.current,
            self.candidate + other.candidate,
            self.runs + other.runs,
        )

    @property
    def is_fallen(self) -> bool:
        """Whether the candidate passed it less often."""
        return self.candidate < self.current


def safety_cases(folder: Path = SAFETY_CASES) -> list[CaseFile]:
    """The cases of a folder, in which nothing is approved.

    Raises `ConfigError` if one of them is wrong, or if there is none.
    """
    cases, problems = CaseFolder(folder).read()
    if problems or not cases:
        raise ConfigError(f"the safety cases cannot be used: {(*problems, folder)[0]}")
    return [replace(case, attended=False) for case in cases]


async def check_safety(
    cases: Sequence[CaseFile],
    *,
    current: OpenRun,
    candidate: OpenRun,
    settings: SafetySettings | None = None,
    resume: Mapping[str, JSON] | None = None,
    on_progress: Callable[[StageResult], None] = lambda result: None,
) -> StageResult:
    """Run the safety cases with both genomes.

    Args:
        cases: Those of `safety_cases`, and perhaps others of the operator.
        current: Prepares runs with the current genome.
        candidate: Prepares runs with the candidate.
        settings: How often.
        resume: The evidence of an interrupted safety stage of the same candidate.
        on_progress: Receives an open result after each batch but the last, as `resume` takes it.
    """
    settings = settings or SafetySettings()
    if not cases:
        return StageResult(passed=False, reason="there are no safety cases")
    scores = _resumed(resume, cases)
    batch, repeats = _waiting(cases, scores, settings)
    while batch:
        done = await _compare(batch, current, candidate, settings, repeats)
        scores |= {name: scores.get(name, SafetyScore(0, 0, 0)) + done[name] for name in done}
        batch, repeats = _waiting(cases, scores, settings)
        if batch:
            on_progress(_open_result(cases, scores))
    return _verdict(cases, scores)


def _waiting(
    cases: Sequence[CaseFile], scores: Mapping[str, SafetyScore], settings: SafetySettings
) -> tuple[Sequence[CaseFile], int]:
    """The next cases to run, and how often with each genome."""
    if new := [case for case in cases if case.name not in scores]:
        return new[: settings.batch], settings.repeats
    most = settings.repeats + settings.rechecks
    suspects = [case for case in cases if (s := scores[case.name]).is_fallen and s.runs < most]
    return suspects[:1], settings.rechecks


async def _compare(
    cases: Sequence[CaseFile],
    current: OpenRun,
    candidate: OpenRun,
    settings: SafetySettings,
    repeats: int,
) -> dict[str, SafetyScore]:
    """Run cases with both genomes, at the same time."""
    done = await evaluate_both(
        cases, current, candidate, repeat=repeats, parallel=settings.parallel
    )
    before, after = (Counter(a.case for a in each.attempts if a.passed) for each in done)
    return {case.name: SafetyScore(before[case.name], after[case.name], repeats) for case in cases}


def _open_result(cases: Sequence[CaseFile], scores: Mapping[str, SafetyScore]) -> StageResult:
    evidence: dict[str, JSON] = {
        "cases": len(scores),
        "of": len(cases),
        "scores": msgspec.to_builtins(scores),
    }
    return StageResult(passed=None, evidence=evidence)


def _verdict(cases: Sequence[CaseFile], scores: Mapping[str, SafetyScore]) -> StageResult:
    fallen = [case.name for case in cases if scores[case.name].is_fallen]
    evidence: dict[str, JSON] = {
        "cases": len(cases),
        "fallen": list[JSON](fallen),
        "failed_with_both": [
            case.name
            for case in cases
            if (s := scores[case.name]).current < s.runs and not s.is_fallen
        ],
    }
    reason = f"safety cases that it passes less often: {', '.join(fallen)}" if fallen else ""
    return StageResult(passed=not fallen, reason=reason, evidence=evidence)


def _resumed(
    evidence: Mapping[str, JSON] | None, cases: Sequence[CaseFile]
) -> dict[str, SafetyScore]:
    """The scores of an interrupted safety stage, of the cases that there still are."""
    found = msgspec.convert((evidence or {}).get("scores", {}), dict[str, SafetyScore])
    return {case.name: found[case.name] for case in cases if case.name in found}
