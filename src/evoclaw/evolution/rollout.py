"""Compares the runs of real sessions that use a candidate with those that use the genome before."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.messages import JSON
from evoclaw.evolution.candidates import StageResult


class RunFigures(Struct, frozen=True, kw_only=True):
    """The figures of some runs."""

    runs: int = 0
    failed: int = 0
    """Runs that ended in another way than completed."""
    denied: int = 0
    """Calls that were denied."""
    cost: float = 0.0
    """In US dollars, as far as prices are known."""
    bad: int = 0
    """Runs that people rated bad."""

    def evidence(self) -> dict[str, JSON]:
        """How a verdict records them."""
        return {
            "runs": self.runs, "failed": self.failed, "denied": self.denied,
            "cost": round(self.cost, 6), "bad": self.bad,
        }  # fmt: skip


def broken_bound(seen: RunFigures, before: RunFigures, settings: AgentEvolution, runs: int) -> str:
    """The bound that so many runs cannot keep any more, whatever the next ones do; empty if none.

    Args:
        seen: The runs of the candidate so far.
        before: Runs of the genome that it is compared with.
        settings: The bounds.
        runs: How many runs decide.
    """
    share = before.failed / before.runs if before.runs else 0.0
    if seen.failed > runs * (share + settings.max_failure_increase):
        return f"{seen.failed} of {seen.runs} runs failed, {_rate(before.failed, before)} before"
    denied = before.denied / before.runs if before.runs else 0.0
    if seen.denied > runs * (denied + settings.max_denied_increase):
        return (
            f"{seen.denied} calls were denied in {seen.runs} runs, "
            f"{_rate(before.denied, before)} before"
        )
    cost = before.cost / before.runs if before.runs else 0.0
    if cost and seen.cost > runs * cost * (1 + settings.max_cost_increase):
        return (
            f"{seen.runs} runs cost {seen.cost:.4f} dollars, {before.cost:.4f} for {before.runs} "
            "before"
        )
    if seen.bad > runs * settings.max_bad_ratings:
        return f"people rated {seen.bad} of {seen.runs} runs bad"
    return ""


def judge_canary(seen: RunFigures, before: RunFigures, settings: AgentEvolution) -> StageResult:
    """Whether a candidate passes its canary stage: at the end, or not as soon as a bound breaks."""
    evidence: dict[str, JSON] = {
        "share": settings.canary_share,
        "candidate": seen.evidence(),
        "before": before.evidence(),
    }
    if why := broken_bound(seen, before, settings, settings.canary_runs):
        return StageResult(passed=False, reason=why, evidence=evidence)
    passed = True if seen.runs >= settings.canary_runs else None
    return StageResult(passed=passed, evidence=evidence)


def _rate(count: int, figures: RunFigures) -> str:
    return f"{count} of {figures.runs}" if figures.runs else "no runs"
