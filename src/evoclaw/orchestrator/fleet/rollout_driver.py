"""Takes the steps of roll-outs of genomes: apply, measure, judge, continue, or roll back.

The store is the truth: an edge is marked `applying` before it is sent the genome, so a process that
was killed anywhere knows which edges may have it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.fleet.edge_genomes import EdgeGenomes, EdgeRefused, EdgeSilent
from evoclaw.orchestrator.fleet.rollout_records import (
    genome_of,
    matches,
    read_edge,
    read_rollout,
    rollout_scores,
    stored_edge,
    stored_rollout,
    with_changed,
)
from evoclaw.orchestrator.fleet.rollout_state import (
    CHANGED,
    Rollout,
    RolloutEdge,
    RolloutEdgeState,
    RolloutState,
    broken_bound,
    evidence,
    planned_edges,
    stage_size,
)
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.genome_rollouts import RolloutStore, RolloutWrites

T = TypeVar("T")
R = TypeVar("R")
logger = logging.getLogger(__name__)
EDGE_CONCURRENCY = 16
"""Edges that are changed or measured at the same time."""
CONTROL_EDGES = 20
"""Edges without the genome that are measured for comparison."""
MEASURE_BATCH = 200
"""Edges that are measured in one round: those that answered longest ago."""


class RolloutTimings(Struct, frozen=True, kw_only=True):
    """How often a roll-out looks at its edges."""

    round_s: float = 2.0
    """Seconds between two rounds while a roll-out is open."""
    idle_s: float = 10.0
    """Seconds between two looks into the store while none is."""
    query_s: float = 5.0
    """Seconds that an edge may take to answer a command."""
    retry_s: float = 10.0
    """Seconds until an edge that did not answer is asked again."""
    lease_s: float = 30.0
    """Seconds after which another orchestrator takes over from one that died."""


class EdgeGenomeChange(Struct, frozen=True, kw_only=True):
    """A change of the genome of an edge, for its lineage."""

    agent_id: str
    before: Genome
    genome: Genome
    by: str
    reason: str
    restored: bool = False
    """Whether it is a rollback."""
    scores: dict[str, JSON] = {}
    """What was judged since the change that it takes back, or confirms."""


RecordChange: TypeAlias = Callable[[EdgeGenomeChange], Awaitable[None]]
"""Adds a change to the lineage of an edge; a repeated change adds nothing."""
ReportRollout: TypeAlias = Callable[[Rollout, str, str], None]
"""Writes to the audit what happened to a roll-out, and who did it; empty: the orchestrator."""


async def no_lineage(change: EdgeGenomeChange) -> None:
    """Record nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutParts:
    """What roll-outs are connected to."""

    record: RecordChange = no_lineage
    report: ReportRollout = lambda rollout, what, by: None
    stopped: Callable[[], str] = lambda: ""
    """Why no edge may be sent a genome now; empty if it may. Rollbacks continue."""
    timings: RolloutTimings = field(default_factory=RolloutTimings)
    clock: Callable[[], float] = time.time
    """Unix seconds."""


class _RolloutMoved(EvoClawError):
    """The roll-out was halted meanwhile; nothing was stored."""


class RolloutDriver:
    """Drives roll-outs for the owner of the lease."""

    def __init__(
        self, store: RolloutStore, orchestrator: Orchestrator, owner: str, parts: RolloutParts
    ) -> None:
        self._store, self._owner, self._fleet = store, owner, orchestrator.fleet
        self._edges = EdgeGenomes(orchestrator, parts.timings.query_s)
        self._parts, self._clock = parts, parts.clock
        self._limit = asyncio.Semaphore(EDGE_CONCURRENCY)
        self._retry_at: dict[str, float] = {}
        self.watching_since: float | None = None
        """Since when this process would have noticed an answer; None: it does not watch."""

    async def drive_all(self, rollouts: Sequence[Rollout]) -> bool:
        """Take the next steps of all open roll-outs; whether to look again at once."""
        if self.watching_since is None:
            self.watching_since = self._clock()
        edges = {rollout.id: await self.edges_of(rollout.id) for rollout in rollouts}

        async def drive(place: int) -> bool:
            rollout = rollouts[place]
            # An older roll-out restores an edge before a later one changes it.
            older = {
                edge.agent_id
                for other in rollouts[:place]
                for edge in edges[other.id]
                if edge.state in CHANGED and other.state is RolloutState.ROLLING_BACK
            }
            newer = {e.agent_id for other in rollouts[place + 1 :] for e in edges[other.id]}
            try:
                return await self._drive(rollout, edges[rollout.id], older, newer)
            except _RolloutMoved:
                return True

        return any(await _each(range(len(rollouts)), drive))

    async def edges_of(self, rollout_id: str) -> list[RolloutEdge]:
        """The edges of a roll-out, by name."""
        return [read_edge(body) for body in await self._store.edges(rollout_id)]

    def retry_now(self, name: str) -> None:
        """Ask an edge again at once: it came or went."""
        self._retry_at.pop(name, None)

    async def _drive(
        self, rollout: Rollout, edges: list[RolloutEdge], older: set[str], newer: set[str]
    ) -> bool:
        """Take the next steps; whether to look again at once."""
        if rollout.state is RolloutState.ROLLING_BACK:
            await self._roll_back(rollout, edges)
            return False
        if rollout.state is RolloutState.COMPLETED:
            await self._reach_sleepers(rollout, edges, older, newer)
            return False
        return await self._run_stage(rollout, edges, older)

    async def _run_stage(self, rollout: Rollout, edges: list[RolloutEdge], older: set[str]) -> bool:
        edges = await self._measure(rollout, await self._with_new_members(rollout, edges))
        if problem := broken_bound(rollout, edges):
            return await self._break(rollout, problem)
        if reason := self._parts.stopped():
            logger.info("roll-out %s waits: %s", rollout.id, reason)
            return False
        room = stage_size(rollout, len(edges)) - sum(
            edge.state in CHANGED or edge.state is RolloutEdgeState.REFUSED for edge in edges
        )
        by_name = {edge.agent_id: edge for edge in edges}
        ready = [
            by_name[name]
            for name in planned_edges(rollout, by_name)
            if name not in older and self._can_ask(name)
        ]
        waiting = [edge for edge in ready if edge.state is RolloutEdgeState.PLANNED]
        unsure = [edge for edge in ready if edge.state is RolloutEdgeState.APPLYING]
        edges = await self._apply_all(rollout, edges, [*unsure, *waiting[: max(room, 0)]])
        if problem := broken_bound(rollout, edges):
            return await self._break(rollout, problem)
        states = {edge.state for edge in edges}
        is_full = room <= 0 or len(waiting) <= room
        if RolloutEdgeState.APPLYING in states or RolloutEdgeState.APPLIED not in states:
            is_full = False
        return is_full and await self._end_stage(rollout, edges)

    async def _end_stage(self, rollout: Rollout, edges: list[RolloutEdge]) -> bool:
        """Start the next stage, if this one was watched long enough and has enough evidence."""
        now, bounds = self._clock(), rollout.bounds
        filled_at = rollout.stage_filled_at
        if filled_at is None:
            filled_at = round(now, 3)
            rollout = replace(rollout, stage_filled_at=filled_at)
            await self._put(rollout)
        has_edges = any(edge.stage == rollout.stage for edge in edges)
        if now - filled_at < bounds.soak_s or (
            has_edges and evidence(edges, rollout.stage) < bounds.min_evidence
        ):
            return False
        if problem := broken_bound(rollout, edges, final=True):
            return await self._break(rollout, problem)
        if rollout.stage + 1 < len(rollout.stages):
            new = replace(rollout, stage=rollout.stage + 1, stage_filled_at=None)
            self._parts.report(new, f"stage {new.stage + 1} of {len(new.stages)}", "")
        else:
            for edge in edges:
                if edge.state is RolloutEdgeState.APPLIED:
                    await self._record(rollout, edge, scores=rollout_scores(rollout, edge))
            new = replace(rollout, state=RolloutState.COMPLETED, ended_at=round(now, 3))
            self._parts.report(new, "completed", "")
        await self._put(new, edges=edges, was=RolloutState.RUNNING)
        return True

    async def _reach_sleepers(
        self, rollout: Rollout, edges: list[RolloutEdge], older: set[str], newer: set[str]
    ) -> None:
        """Give the genome of a completed roll-out to edges that wake only now."""
        outdated = [
            replace(edge, state=RolloutEdgeState.SKIPPED)
            for edge in edges
            if edge.state is RolloutEdgeState.PLANNED and edge.agent_id in newer
        ]
        edges = with_changed(edges, outdated)
        chosen = [
            edge
            for edge in edges
            if edge.state in (RolloutEdgeState.PLANNED, RolloutEdgeState.APPLYING)
            and edge.agent_id not in older
            and self._can_ask(edge.agent_id)
        ]
        if not self._parts.stopped():
            edges = await self._apply_all(rollout, edges, chosen)
        if outdated or not rollout.is_open(edges):
            await self._put(rollout, outdated, edges=edges)

    async def _apply_all(
        self, rollout: Rollout, edges: Sequence[RolloutEdge], chosen: Sequence[RolloutEdge]
    ) -> list[RolloutEdge]:
        """Send the genome to edges, some at the same time, until a bound is broken."""
        known = {edge.agent_id: edge for edge in edges}

        async def apply(edge: RolloutEdge) -> None:
            async with self._limit:
                is_running = rollout.state is RolloutState.RUNNING
                if not (is_running and broken_bound(rollout, list(known.values()))):
                    known[edge.agent_id] = await self._apply(rollout, edge)

        await _each(chosen, apply)
        return list(known.values())

    async def _apply(self, rollout: Rollout, edge: RolloutEdge) -> RolloutEdge:
        name = edge.agent_id
        try:
            if edge.state is RolloutEdgeState.PLANNED:
                found = await self._edges.status(name)
                edge = replace(
                    edge, state=RolloutEdgeState.APPLYING, stage=rollout.stage,
                    before_version=found.genome.version, before=found.genome.content(),
                    before_digest=found.genome.digest, baseline=found.fitness, measured=None,
                    answered_at=self._now(),
                )  # fmt: skip
            order = await self._put(rollout, [edge])
            genome = await self._edges.update(name, rollout.patch, order)
            edge = replace(
                edge, state=RolloutEdgeState.APPLIED, version=genome.version, failed="",
                genome=genome.content(), digest=genome.digest, answered_at=self._now(),
            )  # fmt: skip
            await self._record(rollout, edge)
        except EdgeSilent:
            self._retry_later(name)
            edge = self._with_silence(rollout, edge)
        except EdgeRefused as refused:
            self._retry_later(name)
            state = RolloutEdgeState.REFUSED if refused.is_unchanged else edge.state
            if edge.state is not RolloutEdgeState.PLANNED:  # else it was not sent the genome
                edge = replace(edge, state=state, failed=f"refused the genome: {refused}")
        if edge.state is not RolloutEdgeState.PLANNED:
            await self._put(rollout, [edge])
        return edge

    async def _roll_back(self, rollout: Rollout, edges: list[RolloutEdge]) -> None:
        skipped = [
            replace(edge, state=RolloutEdgeState.SKIPPED)
            for edge in edges
            if edge.state is RolloutEdgeState.PLANNED
        ]
        if skipped:
            await self._put(rollout, skipped)

        async def restore(edge: RolloutEdge) -> RolloutEdge:
            async with self._limit:
                return await self._restore(rollout, edge)

        changed = [edge for edge in edges if edge.state in CHANGED]
        reachable = [edge for edge in changed if self._can_ask(edge.agent_id)]
        edges = with_changed(with_changed(edges, skipped), await _each(reachable, restore))
        if not any(edge.state in CHANGED for edge in edges):
            ended = replace(rollout, state=RolloutState.ROLLED_BACK, ended_at=self._now())
            await self._put(ended, edges=edges, was=RolloutState.ROLLING_BACK)
            self._parts.report(ended, "rolled back", "")

    async def _restore(self, rollout: Rollout, edge: RolloutEdge) -> RolloutEdge:
        name = edge.agent_id
        edge = replace(edge, state=RolloutEdgeState.REVERTING)
        order = await self._put(rollout, [edge])
        try:
            found = await self._edges.restore(name, edge.before_version, edge.before, order)
        except EdgeSilent:
            self._retry_later(name)
            return edge
        except EdgeRefused as refused:
            self._retry_later(name)
            logger.warning("roll-out %s: %s was not rolled back: %s", rollout.id, name, refused)
            edge = replace(edge, failed=f"refused the rollback: {refused}")
        else:
            had = [v for v in found.history if v.version > edge.before_version]
            if not edge.digest and had and had[0].restored is None:
                # It never confirmed the genome, but had it.
                edge = replace(
                    edge, version=had[0].version, digest=had[0].digest, genome=had[0].content()
                )
            await self._record(rollout, edge, restored=found.genome)
            edge = replace(edge, state=RolloutEdgeState.RESTORED, answered_at=self._now())
        await self._put(rollout, [edge])
        return edge

    async def _measure(self, rollout: Rollout, edges: list[RolloutEdge]) -> list[RolloutEdge]:
        """Read the fitness of the edges with the genome, and of some others."""
        last = planned_edges(rollout, (edge.agent_id for edge in edges))[-CONTROL_EDGES:]
        applied = [edge for edge in edges if edge.state is RolloutEdgeState.APPLIED]
        applied.sort(key=lambda edge: edge.answered_at)
        control = [
            edge
            for edge in edges
            # Those that get the genome last, so that they are compared for long.
            if edge.state is RolloutEdgeState.PLANNED and edge.agent_id in last
        ]
        unsure = [edge for edge in edges if edge.state is RolloutEdgeState.APPLYING]

        async def measure(edge: RolloutEdge) -> RolloutEdge:
            if edge.state is RolloutEdgeState.APPLYING or not self._can_ask(edge.agent_id):
                return self._with_silence(rollout, edge)
            try:
                async with self._limit:
                    found = await self._edges.fitness(edge.agent_id)
            except (EdgeSilent, EdgeRefused):
                self._retry_later(edge.agent_id)
                return self._with_silence(rollout, edge)
            return replace(
                edge, measured=found, answered_at=self._now(),
                baseline=found if edge.baseline is None else edge.baseline,
            )  # fmt: skip

        measured = await _each([*applied[:MEASURE_BATCH], *control, *unsure], measure)
        if measured:
            await self._put(rollout, measured)
        return with_changed(edges, measured)

    async def _with_new_members(
        self, rollout: Rollout, edges: list[RolloutEdge]
    ) -> list[RolloutEdge]:
        """The edges, with those that were unknown when the roll-out started."""
        known = {edge.agent_id for edge in edges}
        new = [
            RolloutEdge(agent_id=member.agent_id)
            for member in self._fleet.members()
            if member.agent_id not in known and matches(rollout.selector, member)
        ]
        if new:
            await self._put(rollout, new)
        return [*edges, *new]

    def _with_silence(self, rollout: Rollout, edge: RolloutEdge) -> RolloutEdge:
        """The edge, marked as failed if it got the genome and is silent for too long."""
        if edge.state not in CHANGED or edge.failed or self.watching_since is None:
            return edge
        silent_s = self._clock() - max(edge.answered_at, self.watching_since)
        if silent_s < rollout.bounds.answer_s:
            return edge
        return replace(edge, failed=f"does not answer since it got the genome ({silent_s:.0f} s)")

    async def _record(
        self,
        rollout: Rollout,
        edge: RolloutEdge,
        *,
        restored: Genome | None = None,
        scores: dict[str, JSON] | None = None,
    ) -> None:
        """Add a change of an edge, or its rollback, to its lineage."""
        if edge.digest in ("", edge.before_digest):
            return
        why = rollout.reason if restored is None else rollout.problem
        old, new = genome_of(edge.before, edge.before_version), genome_of(edge.genome, edge.version)
        await self._parts.record(
            EdgeGenomeChange(
                agent_id=edge.agent_id,
                before=old if restored is None else new,
                genome=new if restored is None else restored,
                restored=restored is not None,
                by=rollout.by if restored is None else rollout.halted_by or "orchestrator",
                reason=f"roll-out {rollout.id}: {why}" if why else f"roll-out {rollout.id}",
                scores=rollout_scores(rollout, edge) if restored is not None else scores or {},
            )
        )

    async def _break(self, rollout: Rollout, problem: str) -> bool:
        logger.warning("roll-out %s is rolled back: %s", rollout.id, problem)
        new = rollout.halted(problem, by="", at=self._clock())
        await self._put(new, was=RolloutState.RUNNING)
        self._parts.report(new, "halted", "")
        return True

    async def _put(
        self,
        rollout: Rollout,
        changed: Sequence[RolloutEdge] = (),
        *,
        edges: Sequence[RolloutEdge] | None = None,
        was: RolloutState | None = None,
    ) -> int:
        """Store changed edges, or the roll-out itself; returns an order number.

        Raises `_RolloutMoved` if the stored roll-out is not in the state `was`, by default that of
        the given one: a person halted it. `edges` are all edges of one that may be over.
        """
        expected = rollout.state if was is None else was

        def work(writes: RolloutWrites) -> None:
            body = writes.find(rollout.id)
            if body is None or read_rollout(body).state is not expected:
                raise _RolloutMoved(rollout.id)
            if not changed or edges is not None:
                writes.put(stored_rollout(rollout, edges))
            writes.put_edges(stored_edge(rollout, edge) for edge in changed)

        return await self._store.advance(self._owner, work)

    def _can_ask(self, name: str) -> bool:
        return self._fleet.is_online(name) and self._retry_at.get(name, 0.0) <= self._clock()

    def _retry_later(self, name: str) -> None:
        self._retry_at[name] = self._clock() + self._parts.timings.retry_s

    def _now(self) -> float:
        return round(self._clock(), 3)


async def _each(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Do the same with all items at once; all have ended before the first error is raised."""
    done = await asyncio.gather(*map(work, items), return_exceptions=True)
    found: list[R] = []
    for result in done:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
