"""Routes of roll-outs of genomes to edges: start, list, show, halt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Annotated, TypeVar

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, require
from evoclaw.api.routes.genomes import TAGS, check_editor, user_of
from evoclaw.api.routes.governance import check_operator
from evoclaw.api.routes.parameters import PageLimit, Reason, path_id
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
from evoclaw.orchestrator.fleet.rollout_state import (
    DEFAULT_STAGES,
    FitnessCount,
    Rollout,
    RolloutBounds,
    RolloutEdge,
    RolloutEdgeState,
    RolloutState,
)
from evoclaw.orchestrator.people.access import TokenScope

T = TypeVar("T")
RolloutId = Annotated[str, path_id("The id of the roll-out.")]
Selector = Annotated[str, Meta(min_length=1, max_length=4_000)]


class RolloutStart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A roll-out to start."""

    selector: Selector
    """Edges by id, `type:NAME`, or `*` for all; several are separated by commas."""
    genome: dict[str, JSON]
    """A merge patch for the genome of each edge; null goes back to the configuration."""
    reason: Reason = ""
    """Why, for people."""
    stages: Annotated[tuple[float, ...], Meta(min_length=1, max_length=20)] = DEFAULT_STAGES
    """The share of the edges that have the genome in each stage, in per cent, up to 100."""
    bounds: RolloutBounds = RolloutBounds()
    """When a stage ends, and when everything is rolled back."""


class RolloutHalt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A roll-out to halt."""

    reason: Reason = ""
    """Why, for people."""


class RolloutView(Struct, frozen=True, kw_only=True):
    """A roll-out of a genome to edges."""

    id: str
    """Its id."""
    selector: str
    """The edges that it is for."""
    genome: dict[str, JSON]
    """The merge patch."""
    state: RolloutState
    """Where it is."""
    stage: int
    """The current stage, from 1."""
    stages: tuple[float, ...]
    """The share of the edges in each stage, in per cent."""
    bounds: RolloutBounds
    """When a stage ends, and when everything is rolled back."""
    by: str
    """Who started it."""
    reason: str
    """Why it was started."""
    started_at: float
    """Unix time, seconds."""
    halted_at: float | None
    """When a bound broke, or a person halted it; null: neither."""
    halted_by: str
    """The person who halted it; empty: a bound broke."""
    problem: str
    """Why it is rolled back; empty: it is not."""
    ended_at: float | None
    """When it was completed or rolled back; null: not yet."""
    edges: dict[str, int]
    """How many edges are in each state."""


class RolloutList(Struct, frozen=True):
    """Roll-outs of genomes."""

    items: tuple[RolloutView, ...]
    """The newest first."""


class RolloutEdgeView(Struct, frozen=True, kw_only=True):
    """An edge of a roll-out."""

    agent_id: str
    """The id of the edge."""
    state: RolloutEdgeState
    """What it has."""
    stage: int | None
    """The stage in which it was sent the genome, from 1; null: it was not."""
    before_version: int
    """Its version before the change, as the edge counts; its lineage has numbers of its own."""
    before_digest: str
    """The digest of its genome before the change."""
    version: int
    """Its version after the change, as the edge counts."""
    digest: str
    """The digest of its genome after the change; empty: it did not confirm it."""
    before: FitnessCount | None
    """Its judged calls and runs before the change; null: unknown."""
    after: FitnessCount
    """Its judged calls and runs since the change."""
    failed: str
    """Why it counts as failed; empty: it does not."""


class RolloutDetail(Struct, frozen=True):
    """A roll-out and its edges."""

    rollout: RolloutView
    """The roll-out."""
    edges: tuple[RolloutEdgeView, ...]
    """Its edges, by id."""


@get("/v1/genome-rollouts", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def list_rollouts(
    parts: InjectedDependencies, caller: InjectedCaller, limit: PageLimit = 50
) -> RolloutList:
    """List the newest roll-outs of genomes to edges."""
    check_operator(parts, caller)
    rollouts = _rollouts(parts)
    views = [_view(*(await rollouts.find(found.id))) for found in await rollouts.newest(limit)]
    return RolloutList(tuple(views))


@get("/v1/genome-rollouts/{rollout_id:str}", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_rollout(
    parts: InjectedDependencies, caller: InjectedCaller, rollout_id: RolloutId
) -> RolloutDetail:
    """Show a roll-out, and what each of its edges has."""
    check_operator(parts, caller)
    rollout, edges = await _rollouts(parts).find(rollout_id)
    return RolloutDetail(_view(rollout, edges), tuple(_edge_view(edge) for edge in edges))


@post("/v1/genome-rollouts", scope=TokenScope.EVOLUTION_WRITE, tags=TAGS, status_code=201)
async def start_rollout(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[RolloutStart]
) -> RolloutView:
    """Roll a genome out to edges in stages; it is rolled back everywhere if a bound breaks.

    Only a person may: the token also needs the scope `human`.
    """
    check_editor(parts, caller)
    rollouts = _rollouts(parts)
    started = await _refusable(
        rollouts.start(
            data.selector,
            data.genome,
            by=user_of(caller),
            reason=data.reason,
            stages=data.stages,
            bounds=data.bounds,
        )
    )
    return _view(*(await rollouts.find(started.id)))


@post(
    "/v1/genome-rollouts/{rollout_id:str}/halt",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=200,
)
async def halt_rollout(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    rollout_id: RolloutId,
    data: JSONBody[RolloutHalt],
) -> RolloutView:
    """Halt a roll-out, or take a completed one back: every edge gets its old genome again.

    Only a person may: the token also needs the scope `human`.
    """
    check_editor(parts, caller)
    rollouts = _rollouts(parts)
    await rollouts.halt(rollout_id, by=user_of(caller), reason=data.reason)
    return _view(*(await rollouts.find(rollout_id)))


def _rollouts(parts: ApiDependencies) -> GenomeRollouts:
    return require(parts.genome_rollouts, "roll-outs of genomes")


async def _refusable(change: Awaitable[T]) -> T:
    try:
        return await change
    except ToolFailure as refused:
        raise ApiError(422, "invalid", refused.message) from None


def _view(rollout: Rollout, edges: Sequence[RolloutEdge]) -> RolloutView:
    return RolloutView(
        id=rollout.id, selector=rollout.selector, genome=rollout.patch, state=rollout.state,
        stage=rollout.stage + 1, stages=rollout.stages, bounds=rollout.bounds, by=rollout.by,
        reason=rollout.reason, started_at=rollout.started_at, halted_at=rollout.halted_at,
        halted_by=rollout.halted_by, problem=rollout.problem, ended_at=rollout.ended_at,
        edges=dict(Counter(str(edge.state) for edge in edges)),
    )  # fmt: skip


def _edge_view(edge: RolloutEdge) -> RolloutEdgeView:
    return RolloutEdgeView(
        agent_id=edge.agent_id, state=edge.state,
        stage=None if edge.stage is None else edge.stage + 1, before_version=edge.before_version,
        before_digest=edge.before_digest, version=edge.version, digest=edge.digest,
        before=edge.baseline, after=edge.after, failed=edge.failed,
    )  # fmt: skip


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_rollouts,
    show_rollout,
    start_rollout,
    halt_rollout,
)
