"""What is asked for when somebody wants the figures: the fleet, the store, the disk."""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from evoclaw.core.errors import EvoClawError

if TYPE_CHECKING:
    from pathlib import Path

    from evoclaw.observe.tallies import EdgeFigures, Gauges
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.store.databases.database import Database
    from evoclaw.store.metrics.backlog import Backlog

PATIENCE = 2.0
"""Seconds that a part has to say that it works."""
MEGA = 1 << 20


class Gauging:
    """Knows where to look; what the store knows is fetched before the figures are written."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        database: Database,
        home: Path,
        live: Callable[[], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._orchestrator, self._database, self._home = orchestrator, database, home
        self._live, self._clock = live, clock
        self._backlog: Backlog | None = None
        self._ready: dict[str, bool] = {}

    def gauges(self) -> Gauges:
        """Where the figures ask."""
        from evoclaw.observe.tallies import Gauges

        fleet, reception = self._orchestrator.fleet, self._orchestrator.reception
        return Gauges(
            live_runs=self._live,
            queued_runs=lambda: self._of(lambda waits: waits.queued_runs),
            edges_online=lambda: len(fleet.online()),
            edges=self._edges,
            approvals_waiting=lambda: self._of(lambda waits: waits.approvals),
            approval_wait=lambda: self._of(self._wait),
            disk_free=lambda: shutil.disk_usage(self._home).free,
            ready=lambda: self._ready,
            link_reconnects=lambda: reception.counts["disconnected"],
            store_busy=lambda: self._database.busy_s,
            store_commits=lambda: self._database.commits,
            counts={"reception": lambda: reception.counts},
        )

    async def refresh(self, checks: Mapping[str, Callable[[], Awaitable[str]]]) -> None:
        """Look at what cannot be looked at in passing.

        Args:
            checks: By name, what says whether a part works: nothing if it does.
        """
        works = await asyncio.gather(*(self._works(check) for check in checks.values()))
        self._ready = dict(zip(checks, works, strict=True))
        self._backlog = await self._waits()

    async def _works(self, check: Callable[[], Awaitable[str]]) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                return not await check()
        except (EvoClawError, TimeoutError, OSError):
            return False  # which part it is stands in the figures; why, in what it logs

    async def _waits(self) -> Backlog | None:
        from evoclaw.store.metrics.backlog import backlog_of

        try:
            async with asyncio.timeout(PATIENCE):
                return await backlog_of(self._database, self._clock())
        except (EvoClawError, TimeoutError):
            return None  # nobody knows: that the store does not work is told beside

    def _of(self, figure: Callable[[Backlog], float]) -> float:
        return math.nan if self._backlog is None else figure(self._backlog)

    def _wait(self, waits: Backlog) -> float:
        oldest = waits.oldest_approval
        return 0.0 if oldest is None else max(self._clock() - oldest, 0.0)

    def _edges(self) -> Iterator[EdgeFigures]:
        from evoclaw.observe.tallies import EdgeFigures

        for member in self._orchestrator.fleet.members():
            beat = member.heartbeat
            if beat is None or not member.online:
                # What it had to do when it was last heard of is not what it does now.
                yield EdgeFigures(member.agent_id, member.online, last_seen=member.last_seen)
                continue
            yield EdgeFigures(
                member.agent_id,
                True,
                beat.in_flight,
                beat.queued,
                beat.cpu_percent,
                beat.memory_mb * MEGA,
                beat.uptime_s,
                member.last_seen,
            )
