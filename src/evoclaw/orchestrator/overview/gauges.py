"""Reads the gauges of the service: from the fleet, the store and the disk."""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from evoclaw.core.errors import EvoClawError
from evoclaw.observe.counters import EdgeGauges, Gauges
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.databases.database import Database
from evoclaw.store.metrics.store import StoreBacklog, backlog_of

CHECK_TIMEOUT_S = 2.0
"""For the check of one part."""
MEBIBYTE = 1 << 20


class GaugeReader:
    """Reads gauges; those of the store are fetched before the metrics are rendered."""

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
        self._backlog: StoreBacklog | None = None
        self._ready: dict[str, bool] = {}

    def gauges(self) -> Gauges:
        """The gauges, each read when the metrics are rendered."""
        fleet, reception = self._orchestrator.fleet, self._orchestrator.report_receiver
        return Gauges(
            live_runs=self._live,
            queued_runs=lambda: self._of(lambda backlog: backlog.queued_runs),
            edges_online=lambda: len(fleet.online()),
            edges=self._edges,
            approvals_waiting=lambda: self._of(lambda backlog: backlog.approvals),
            approval_wait=lambda: self._of(self._wait),
            disk_free=lambda: shutil.disk_usage(self._home).free,
            ready=lambda: self._ready,
            link_reconnects=lambda: reception.counts["disconnected"],
            store_busy=lambda: self._database.busy_s,
            store_commits=lambda: self._database.commits,
            counts={"reception": lambda: reception.counts},
        )

    async def refresh(self, checks: Mapping[str, Callable[[], Awaitable[str]]]) -> None:
        """Fetch what needs I/O: the checks of all parts, and the backlog of the store.

        Args:
            checks: By name, a check that returns the problem of a part, or an empty text.
        """
        works = await asyncio.gather(*(self._works(check) for check in checks.values()))
        self._ready = dict(zip(checks, works, strict=True))
        self._backlog = await self._fetch_backlog()

    async def _works(self, check: Callable[[], Awaitable[str]]) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return not await check()
        except (EvoClawError, TimeoutError, OSError):
            return False  # the metrics name the part; its log has the reason

    async def _fetch_backlog(self) -> StoreBacklog | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return await backlog_of(self._database, self._clock())
        except (EvoClawError, TimeoutError):
            return None  # unknown; the check of the store reports the problem

    def _of(self, read: Callable[[StoreBacklog], float]) -> float:
        return math.nan if self._backlog is None else read(self._backlog)

    def _wait(self, backlog: StoreBacklog) -> float:
        oldest = backlog.oldest_approval
        return 0.0 if oldest is None else max(self._clock() - oldest, 0.0)

    def _edges(self) -> Iterator[EdgeGauges]:
        for member in self._orchestrator.fleet.members():
            beat = member.heartbeat
            if beat is None or not member.online:
                # The load in its last heartbeat is not its load now.
                yield EdgeGauges(member.agent_id, member.online, last_seen=member.last_seen)
                continue
            yield EdgeGauges(
                member.agent_id,
                True,
                beat.in_flight,
                beat.queued,
                beat.cpu_percent,
                beat.memory_mb * MEBIBYTE,
                beat.uptime_s,
                member.last_seen,
            )
