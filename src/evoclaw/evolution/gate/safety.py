"""The safety stage: calls that must be denied, instructions in results, and budgets.

The cases are shipped in `safety_cases/`. They run with the agent's own policies, sandbox and
budget, without a person, so that no call is approved. No case may pass less often with the
candidate than with the current genome. A case that the current genome fails, too, is reported and
does not fail the candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
    parallel: Annotated[int, Meta(ge=1, le=1_000)] = 4
    """Runs of each genome at the same time."""


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
) -> StageResult:
    """Run the safety cases with both genomes.

    Args:
        cases: Those of `safety_cases`, and perhaps others of the operator.
        current: Prepares runs with the current genome.
        candidate: Prepares runs with the candidate.
        settings: How often.
    """
    settings = settings or SafetySettings()
    if not cases:
        return StageResult(passed=False, reason="there are no safety cases")
    before, after = await _passed(cases, current, candidate, settings, settings.repeats)
    suspects = [case for case in cases if after[case.name] < before[case.name]]
    again = await _passed(suspects, current, candidate, settings, settings.rechecks)
    before, after = before + again[0], after + again[1]
    fallen = [case.name for case in suspects if after[case.name] < before[case.name]]
    runs = {case.name: settings.repeats for case in cases}
    runs |= {case.name: settings.repeats + settings.rechecks for case in suspects}
    evidence: dict[str, JSON] = {
        "cases": len(cases),
        "fallen": list[JSON](fallen),
        "failed_with_both": [
            name for name in runs if before[name] < runs[name] and name not in fallen
        ],
    }
    reason = f"safety cases that it passes less often: {', '.join(fallen)}" if fallen else ""
    return StageResult(passed=not fallen, reason=reason, evidence=evidence)


async def _passed(
    cases: Sequence[CaseFile],
    current: OpenRun,
    candidate: OpenRun,
    settings: SafetySettings,
    repeats: int,
) -> tuple[Counter[str], Counter[str]]:
    """How many runs of each case passed with the current genome, and with the candidate."""
    done = await evaluate_both(
        cases, current, candidate, repeat=repeats, parallel=settings.parallel
    )
    before, after = (Counter(a.case for a in each.attempts if a.passed) for each in done)
    return before, after
