"""The state of a roll-out of a genome, and when its bounds are broken.

Fitness is compared by counts since the change: what an edge did before it is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.core.genome_patches import genome_refused
from evoclaw.core.messages import JSON, is_object

CONFIDENCE_Z = 1.96
"""For intervals of 95 %."""
MIN_REFERENCE = 5
"""Calls or runs below which an earlier share, or that of other edges, says nothing."""
MIN_JUDGED = 3
"""Calls or runs since the change below which a share breaks no bound while a stage is watched."""
MAX_STAGES = 20
DEFAULT_STAGES = (5.0, 25.0, 100.0)


class RolloutState(StrEnum):
    """Where a roll-out is."""

    RUNNING = "running"
    """One stage after the other."""
    COMPLETED = "completed"
    """The last stage passed; an edge that was asleep gets the genome when it wakes."""
    ROLLING_BACK = "rolling_back"
    """Every edge that has the genome, or may have it, gets its old one back."""
    ROLLED_BACK = "rolled_back"
    """No edge has the genome."""


class RolloutEdgeState(StrEnum):
    """What an edge has."""

    PLANNED = "planned"
    """It was not sent the genome yet."""
    APPLYING = "applying"
    """It was sent the genome, and may have it."""
    APPLIED = "applied"
    """It has the genome."""
    REFUSED = "refused"
    """It refused the genome, and kept its own."""
    REVERTING = "reverting"
    """It was sent the rollback, and did not confirm it yet."""
    RESTORED = "restored"
    """It has its old genome back."""
    SKIPPED = "skipped"
    """It was never sent the genome, and never will be."""


CHANGED = frozenset(
    {RolloutEdgeState.APPLYING, RolloutEdgeState.APPLIED, RolloutEdgeState.REVERTING}
)
"""States of an edge that may have the genome."""


class RolloutBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a roll-out continues, and when it is rolled back."""

    soak_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 300.0
    """Seconds for which a stage is watched before the next one starts."""
    min_evidence: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    """Judged calls and runs on the edges of a stage before the next one starts; 0: none needed."""
    max_drop: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """How far fitness may fall, as a share of all calls or runs."""
    max_failed: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Edges that may refuse the genome or stop answering."""
    answer_s: Annotated[float, Meta(gt=0, le=7 * 86_400)] = 120.0
    """Seconds after which an edge that got the genome, and does not answer, counts as failed."""


class FitnessCount(Struct, frozen=True):
    """Judged calls and runs of an edge since its start."""

    calls: int = 0
    """Calls that count."""
    succeeded: float = 0.0
    """Those that succeeded."""
    runs: int = 0
    """Runs that count."""
    points: float = 0.0
    """Completed runs, and half of those that a limit ended."""

    def since(self, earlier: FitnessCount) -> FitnessCount:
        """What was added; everything if the counters started again."""
        if self.calls < earlier.calls or self.runs < earlier.runs:
            return self
        return FitnessCount(
            self.calls - earlier.calls,
            max(self.succeeded - earlier.succeeded, 0.0),
            self.runs - earlier.runs,
            max(self.points - earlier.points, 0.0),
        )


class RolloutEdge(Struct, frozen=True, kw_only=True):
    """An edge of a roll-out."""

    agent_id: str
    state: RolloutEdgeState = RolloutEdgeState.PLANNED
    stage: int | None = None
    """The stage in which it was sent the genome, from 0."""
    before_version: int = 0
    """Its version before the change; it is what a rollback restores."""
    before: dict[str, JSON] = {}
    """What its genome set before the change."""
    before_digest: str = ""
    version: int = 0
    """Its version after the change."""
    genome: dict[str, JSON] = {}
    """What its genome sets after the change."""
    digest: str = ""
    """Of its genome after the change; empty: it did not confirm the change."""
    baseline: FitnessCount | None = None
    """Its counts at the change; of an edge without the genome, at the start."""
    measured: FitnessCount | None = None
    """Its latest counts."""
    answered_at: float = 0.0
    """When it last answered, Unix seconds."""
    failed: str = ""
    """Why it counts as failed; empty if it does not."""

    @property
    def after(self) -> FitnessCount:
        """What was judged since the change."""
        if self.measured is None:
            return FitnessCount()
        return self.measured.since(self.baseline or FitnessCount())


class Rollout(Struct, frozen=True, kw_only=True):
    """A roll-out of a genome to the edges of a selector."""

    id: str
    selector: str
    """Edges by name, `type:NAME`, or `*`; several are separated by commas."""
    patch: dict[str, JSON]
    """The change: a merge patch of the genome of each edge."""
    by: str
    """Who started it."""
    reason: str = ""
    stages: tuple[float, ...] = DEFAULT_STAGES
    """The share of the edges that have the genome in each stage, in per cent."""
    bounds: RolloutBounds = RolloutBounds()
    started_at: float = 0.0
    """Unix seconds."""
    state: RolloutState = RolloutState.RUNNING
    stage: int = 0
    """The current stage, from 0."""
    stage_filled_at: float | None = None
    """When every edge that the stage can have had the genome; null: not yet."""
    halted_at: float | None = None
    """When a bound broke, or a person halted it."""
    halted_by: str = ""
    problem: str = ""
    """Why it is rolled back."""
    ended_at: float | None = None
    """When it was completed or rolled back."""

    def is_open(self, edges: Iterable[RolloutEdge] | None) -> bool:
        """Whether an edge may still have to be changed; `edges` None: they are unknown."""
        if self.state is RolloutState.ROLLED_BACK:
            return False
        waiting = (RolloutEdgeState.PLANNED, RolloutEdgeState.APPLYING)
        if self.state is RolloutState.COMPLETED and edges is not None:
            return any(edge.state in waiting for edge in edges)
        return True

    def halted(self, problem: str, *, by: str, at: float) -> Rollout:
        """The same, about to be rolled back."""
        return replace(
            self, state=RolloutState.ROLLING_BACK, halted_at=round(at, 3), halted_by=by,
            problem=problem, ended_at=None,
        )  # fmt: skip


class RolloutNotFound(EvoClawError):
    """There is no such roll-out."""

    def __init__(self, rollout: str) -> None:
        super().__init__(f"there is no roll-out {rollout!r}; see `evoclaw genome roll-outs`")


class NoEdgeSelected(EvoClawError):
    """A selector means no known edge."""

    def __init__(self, selector: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no known edge matches {selector[:200]!r}: use the id of an edge, `type:NAME` or `*`; "
            f"known edges: {', '.join(known) or 'none'}"
        )


class RolloutConflict(EvoClawError):
    """Another roll-out is in the way."""

    def __init__(self, agent_id: str, other: Rollout) -> None:
        super().__init__(
            f"edge {agent_id!r} is part of the roll-out {other.id}, which is {other.state}: wait "
            f"for its end, or halt it with `evoclaw genome halt {other.id}`"
        )


def check_apart(names: Iterable[str], other: Rollout, edges: Iterable[RolloutEdge]) -> None:
    """Raise `RolloutConflict` if one of these edges is part of another roll-out."""
    for name in sorted({edge.agent_id for edge in edges}.intersection(names)):
        raise RolloutConflict(name, other)


def check_stages(stages: Sequence[float]) -> None:
    """Raise `ToolFailure` for stages that do not grow to 100 per cent."""
    grows = all(low < high for low, high in pairwise((0.0, *stages)))
    if not stages or not grows or stages[-1] != 100 or len(stages) > MAX_STAGES:
        raise genome_refused(
            f"The stages {', '.join(f'{s:g}' for s in stages) or 'are none'}: set growing shares "
            f"in per cent, at most {MAX_STAGES}, the last one 100, such as 5,25,100."
        )


def planned_edges(rollout: Rollout, names: Iterable[str]) -> list[str]:
    """The edges in the order in which they get the genome: unrelated to their names."""
    return sorted(names, key=lambda name: sha256(f"{rollout.id} {name}".encode()).digest())


def stage_size(rollout: Rollout, edges: int) -> int:
    """How many edges may have the genome in the current stage."""
    return max(1, math.floor(edges * rollout.stages[rollout.stage] / 100))


def read_fitness(metrics: JSON) -> FitnessCount | None:
    """The counts in an edge's `fitness`; None if it has none that can be read."""
    if not is_object(metrics):
        return None
    numbers = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    calls = max(round(numbers.get("calls_judged", 0)), 0)
    runs = max(round(numbers.get("runs_judged", 0)), 0)
    # An edge of an older release reports only shares.
    succeeded = numbers.get("calls_succeeded", numbers.get("tools", 0.0) * calls)
    points = numbers.get("run_points", numbers.get("model", 0.0) * runs)
    return FitnessCount(calls, min(max(succeeded, 0.0), calls), runs, min(max(points, 0.0), runs))


def total(counts: Iterable[FitnessCount]) -> FitnessCount:
    """The sum over several edges."""
    calls, succeeded, runs, points = 0, 0.0, 0, 0.0
    for count in counts:
        calls, succeeded = calls + count.calls, succeeded + count.succeeded
        runs, points = runs + count.runs, points + count.points
    return FitnessCount(calls, succeeded, runs, points)


def evidence(edges: Sequence[RolloutEdge], stage: int) -> int:
    """Judged calls and runs, since the change, of the edges of a stage."""
    counts = total(edge.after for edge in edges if edge.stage == stage)
    return counts.calls + counts.runs


def broken_bound(rollout: Rollout, edges: Sequence[RolloutEdge], *, final: bool = False) -> str:
    """Why a roll-out must be rolled back; empty if no bound is broken.

    While a stage is watched, fitness breaks the bound when the whole interval of the share is
    below it, for one edge or for all together; at its end (`final`), when the share itself is.
    """
    bounds = rollout.bounds
    failed = [edge for edge in edges if edge.failed]
    if len(failed) > bounds.max_failed:
        more = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
        return f"edge {failed[0].agent_id!r} {failed[0].failed}{more}"
    changed = [edge for edge in edges if edge.state in CHANGED]
    without = [edge for edge in edges if edge.state is RolloutEdgeState.PLANNED]
    elsewhere = total(edge.after for edge in without)
    groups = [(f"on edge {edge.agent_id!r}", [edge], False) for edge in changed]
    groups.append((f"on {len(changed)} edges with the genome", changed, final))
    for where, group, at_end in groups:
        after = total(edge.after for edge in group)
        before = total(edge.baseline or FitnessCount() for edge in group)
        for whole, good in (("calls", "succeeded"), ("runs", "points")):
            pairs = [(getattr(c, whole), getattr(c, good)) for c in (after, before, elsewhere)]
            if problem := _drop(*pairs, max_drop=bounds.max_drop, final=at_end):
                return f"{where}, {problem} of the {whole} since the change succeeded"
    return ""


def _drop(
    after: tuple[int, float],
    *references: tuple[int, float],
    max_drop: float,
    final: bool,
) -> str:
    """What the share is, and should be, if it fell too far; counts are (all, good)."""
    whole, good = after
    if not whole:
        return ""
    known = [part / all_ for all_, part in references if all_ >= MIN_REFERENCE]
    # The lower one: if edges without the genome got worse too, it is not the genome.
    expected = min(known, default=1.0)
    limit = expected - max_drop
    is_sure = whole >= MIN_JUDGED and _upper(good, whole) < limit
    if is_sure or (final and good / whole < limit):
        return f"{good / whole:.0%} (expected: {expected:.0%})"
    return ""


def _upper(good: float, whole: int) -> float:
    """The upper end of the Wilson score interval of a share."""
    share, z2 = good / whole, CONFIDENCE_Z**2
    centre = share + z2 / (2 * whole)
    spread = CONFIDENCE_Z * math.sqrt((share * (1 - share) + z2 / (4 * whole)) / whole)
    return (centre + spread) / (1 + z2 / whole)
