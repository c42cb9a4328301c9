"""Roll-outs of genomes to edges: start, halt and find them, and drive those that are open.

Of the orchestrators that share a store, the owner of the lease drives them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from evoclaw.core.errors import EvoClawError
from evoclaw.core.genome import CONFIGURED, EDGE_TUNABLES
from evoclaw.core.genome_patches import genome_refused, merged
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.fleet.fleet import PresenceChange
from evoclaw.orchestrator.fleet.rollout_driver import RolloutDriver, RolloutParts
from evoclaw.orchestrator.fleet.rollout_records import (
    matches,
    read_edge,
    read_rollout,
    stored_edge,
    stored_rollout,
)
from evoclaw.orchestrator.fleet.rollout_state import (
    CHANGED,
    DEFAULT_STAGES,
    NoEdgeSelected,
    Rollout,
    RolloutBounds,
    RolloutEdge,
    RolloutNotFound,
    RolloutState,
    check_apart,
    check_stages,
)
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.databases.database import StoreError
from evoclaw.store.genome_rollouts import RolloutLeaseLost, RolloutStore, RolloutWrites

logger = logging.getLogger(__name__)
MAX_LISTED_EDGES = 20
"""Edges that an error names."""
GATHER_DELAY_S = 0.05
"""Seconds to wait for more edges when one comes online."""


class GenomeRollouts:
    """The roll-outs of genomes to the edges of an orchestrator."""

    def __init__(
        self, store: RolloutStore, orchestrator: Orchestrator, parts: RolloutParts | None = None
    ) -> None:
        """`parts` are the lineage, the audit and the timings; by default none and the usual."""
        self._parts = parts or RolloutParts()
        self._store, self._fleet = store, orchestrator.fleet
        self._receiver = orchestrator.report_receiver
        self._owner, self._timings = secrets.token_hex(8), self._parts.timings
        self._driver = RolloutDriver(store, orchestrator, self._owner, self._parts)
        self._wake = asyncio.Event()
        self._has_open = True
        orchestrator.on_presence(self._on_presence)

    async def start(
        self,
        selector: str,
        patch: Mapping[str, JSON],
        *,
        by: str,
        reason: str = "",
        stages: Sequence[float] = DEFAULT_STAGES,
        bounds: RolloutBounds | None = None,
    ) -> Rollout:
        """Start a roll-out.

        Raises `NoEdgeSelected`, `ToolFailure` for a patch or stages that cannot be right, and
        `RolloutConflict` if another roll-out to one of the edges is running.
        """
        members = self._fleet.members()
        names = [member.agent_id for member in members if matches(selector, member)]
        if not names:
            known = [member.agent_id for member in members[:MAX_LISTED_EDGES]]
            raise NoEdgeSelected(selector, known)
        if not patch:
            raise genome_refused("The patch is empty: set at least one key of the genome.")
        merged(CONFIGURED, patch, CONFIGURED, EDGE_TUNABLES)
        check_stages(stages)
        rollout = Rollout(
            id=f"rollout-{secrets.token_hex(4)}", selector=selector, patch=dict(patch), by=by,
            reason=reason, stages=tuple(stages), bounds=bounds or RolloutBounds(),
            started_at=round(self._parts.clock(), 3),
        )  # fmt: skip
        self._parts.report(rollout, "started", by)

        def work(writes: RolloutWrites) -> None:
            for other in map(read_rollout, writes.open_rollouts()):
                if other.state is RolloutState.RUNNING:
                    check_apart(names, other, map(read_edge, writes.edges(other.id)))
            writes.add(stored_rollout(rollout))
            writes.put_edges(stored_edge(rollout, RolloutEdge(agent_id=name)) for name in names)

        await self._store.write(work)
        self._wake.set()
        return rollout

    async def halt(self, rollout_id: str, *, by: str, reason: str = "") -> Rollout:
        """Stop a roll-out, and give every edge its old genome back.

        One that is completed can be taken back too, unless a later one changed the same edges.
        Raises `RolloutNotFound` and `RolloutConflict`.
        """
        halted: list[Rollout] = []

        def work(writes: RolloutWrites) -> None:
            halted.clear()
            now = _found(writes, rollout_id)
            if now.state in (RolloutState.ROLLING_BACK, RolloutState.ROLLED_BACK):
                halted.append(now)
                return
            if now.state is RolloutState.COMPLETED:
                names = [read_edge(body).agent_id for body in writes.edges(rollout_id)]
                for other in (_found(writes, id_) for id_ in writes.newer_than(now.started_at)):
                    if other.state is not RolloutState.ROLLED_BACK:
                        check_apart(names, other, map(read_edge, writes.edges(other.id)))
            problem = reason or "a person halted it"
            halted.append(now.halted(problem, by=by, at=self._parts.clock()))
            writes.put(stored_rollout(halted[0]))

        await self._store.write(work)
        self._wake.set()
        self._parts.report(halted[0], "halted", by)
        return halted[0]

    async def newest(self, limit: int = 100) -> list[Rollout]:
        """The newest roll-outs, the newest first."""
        return [read_rollout(body) for body in await self._store.newest(limit)]

    async def find(self, rollout_id: str) -> tuple[Rollout, list[RolloutEdge]]:
        """A roll-out and its edges; raises `RolloutNotFound`."""
        body = await self._store.find(rollout_id)
        if body is None:
            raise RolloutNotFound(rollout_id)
        return read_rollout(body), await self._driver.edges_of(rollout_id)

    async def check_free(self, agent_id: str) -> None:
        """Raise `RolloutConflict` if a roll-out is changing an edge."""
        for rollout in map(read_rollout, await self._store.open_rollouts()):
            edges = await self._driver.edges_of(rollout.id)
            if rollout.state is RolloutState.ROLLING_BACK:
                edges = [edge for edge in edges if edge.state in CHANGED]
            if rollout.state is not RolloutState.COMPLETED:
                check_apart([agent_id], rollout, edges)

    @asynccontextmanager
    async def serving(self, *, alone: bool = False) -> AsyncGenerator[None]:
        """Drive the roll-outs while the block runs, unless another orchestrator does.

        `alone` says that no other process uses the store, so the lease of the last one is void.
        """
        tasks = [asyncio.create_task(self._serve(alone=alone)), asyncio.create_task(self._renew())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._driver.watching_since is not None:
                await self._release()

    async def _serve(self, *, alone: bool) -> None:
        while True:
            delay = self._timings.idle_s
            try:
                if self._receiver.is_connected:
                    self._has_open = await self._round(alone=alone)
                    alone = alone and not self._has_open
                else:  # nothing that an edge answers would be noticed
                    self._driver.watching_since = None
            except RolloutLeaseLost:
                self._driver.watching_since = None
            except EvoClawError as problem:
                logger.warning("roll-outs of genomes are tried again later: %s", problem)
            if self._has_open:
                delay = self._timings.round_s
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
                await asyncio.sleep(min(delay, GATHER_DELAY_S))
            except TimeoutError:
                continue
            finally:
                self._wake.clear()

    async def _round(self, *, alone: bool) -> bool:
        """Look at every open roll-out once; whether there is one."""
        rollouts = [read_rollout(body) for body in await self._store.open_rollouts()]
        if not rollouts:
            return False
        if not await self._store.claim(self._owner, self._timings.lease_s, alone=alone):
            self._driver.watching_since = None
        elif await self._driver.drive_all(rollouts):
            self._wake.set()
        return True

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._timings.lease_s / 3)
            if self._driver.watching_since is None:
                continue
            try:
                await self._store.claim(self._owner, self._timings.lease_s)
            except StoreError as problem:
                logger.warning("the lease on roll-outs of genomes was not renewed: %s", problem)

    async def _release(self) -> None:
        try:
            await self._store.release(self._owner)
        except StoreError as problem:
            logger.warning("the lease on roll-outs of genomes was not released: %s", problem)

    def _on_presence(self, change: PresenceChange) -> None:
        self._driver.retry_now(change.agent_id)
        if self._has_open:
            self._wake.set()


def _found(writes: RolloutWrites, rollout_id: str) -> Rollout:
    body = writes.find(rollout_id)
    if body is None:
        raise RolloutNotFound(rollout_id)
    return read_rollout(body)
