"""Schedulers: decide which queued runs this process starts, and when.

`LocalScheduler` reads the run table itself, where one process uses the database (SQLite).
`QueueScheduler` gets jobs from procrastinate, where several orchestrators share a PostgreSQL. A job
is a session with something to do; it is driven run by run until nothing is left there, so that the
runs of a session need no queue positions of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from evoclaw.orchestrator.errands import RunSettings
from evoclaw.orchestrator.runs.driving import RunDriver
from evoclaw.orchestrator.runs.holders import is_process_dead
from evoclaw.store.runs.queue import RunQueue

Attempt: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs something that may fail while the store is unavailable."""


class Scheduler(Protocol):
    """Decides which runs this process drives."""

    async def open(self) -> None:
        """Get ready to serve; raises if that is not possible."""
        ...

    async def serve(self, attempt: Attempt) -> None:
        """Start the next runs, until this is cancelled."""
        ...

    def close(self) -> None:
        """Start no more runs."""
        ...

    def trigger(self) -> None:
        """Check for runs to start."""
        ...

    def reserve_slot(self, tenant: str) -> AbstractContextManager[bool]:
        """Whether the caller may start a run; its slot is reserved while the block lasts."""
        ...

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run."""
        ...

    async def reclaim_abandoned(self) -> None:
        """Find dead processes and reclaim their runs."""
        ...


class LocalScheduler:
    """Starts queued runs from the run table whenever a slot is free."""

    def __init__(self, driver: RunDriver, queue: RunQueue, settings: RunSettings) -> None:
        self._driver, self._queue, self._settings = driver, queue, settings
        self._triggered = asyncio.Event()
        self._reserved: Counter[str] = Counter()
        """Slots reserved for runs that are being stored, by tenant."""
        self._open = False

    async def open(self) -> None:
        """Accept runs."""
        self._open = True
        self.trigger()

    async def serve(self, attempt: Attempt) -> None:
        """Start queued runs whenever a slot may be free."""
        while True:
            await self._triggered.wait()
            self._triggered.clear()
            await attempt(self._start_queued)

    def close(self) -> None:
        """Start no more runs."""
        self._open = False

    def trigger(self) -> None:
        """Check for runs to start."""
        self._triggered.set()

    @contextmanager
    def reserve_slot(self, tenant: str) -> Generator[bool]:
        """Whether a tenant may start another run; its slot is reserved while the block lasts."""
        counts = self._slots_in_use()
        room = self._open and counts.total() < self._settings.at_once
        room = room and counts[tenant] < self._settings.per_tenant
        self._reserved[tenant] += room
        try:
            yield room
        finally:
            self._reserved[tenant] -= room

    def _slots_in_use(self) -> Counter[str]:
        return Counter(self._driver.active_per_tenant) + self._reserved

    async def _start_queued(self) -> None:
        counts = self._slots_in_use()
        room = self._settings.at_once - counts.total()
        if room <= 0 or not self._open:
            return
        for claim in await self._queue.claim_next(counts, room, self._settings.per_tenant):
            self._driver.start(claim)

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run if a slot is free; else the next poll does."""
        with self.reserve_slot(tenant) as room:
            claim = await self._queue.claim(tenant, run_id) if room else None
            if claim is not None:
                self._driver.start(claim)

    async def reclaim_abandoned(self) -> None:
        """Expire the claims of dead processes, so that their leases need not be waited for."""
        dead = [holder for holder in await self._queue.other_holders() if is_process_dead(holder)]
        if dead:
            await self._queue.expire_holders(dead)
