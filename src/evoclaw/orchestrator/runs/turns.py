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
from evoclaw.orchestrator.runs.driving import Driving
from evoclaw.orchestrator.runs.holders import is_gone
from evoclaw.store.runs.queue import RunQueue

Trying: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs something that may fail while the store is unavailable."""


class Turns(Protocol):
    """Decides which runs this process drives."""

    async def begin(self) -> None:
        """Get ready to serve; raises if that is not possible."""
        ...

    async def serve(self, trying: Trying) -> None:
        """Start the next runs, until this is cancelled."""
        ...

    def close(self) -> None:
        """Start no more runs."""
        ...

    def poke(self) -> None:
        """Check for runs to start."""
        ...

    def room_for(self, tenant: str) -> AbstractContextManager[bool]:
        """Whether the caller may start a run; its slot is reserved while the block lasts."""
        ...

    async def wake(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run."""
        ...

    async def look(self) -> None:
        """Find dead processes and reclaim their runs."""
        ...


class OwnTurns:
    """Starts queued runs from the run table whenever a slot is free."""

    def __init__(self, driving: Driving, queue: RunQueue, settings: RunSettings) -> None:
        self._driving, self._queue, self._settings = driving, queue, settings
        self._poked = asyncio.Event()
        self._reserved: Counter[str] = Counter()
        """Slots reserved for runs that are being stored, by tenant."""
        self._open = False

    async def begin(self) -> None:
        """Accept runs."""
        self._open = True
        self.poke()

    async def serve(self, trying: Trying) -> None:
        """Start queued runs whenever a slot may be free."""
        while True:
            await self._poked.wait()
            self._poked.clear()
            await trying(self._begin_some)

    def close(self) -> None:
        """Start no more runs."""
        self._open = False

    def poke(self) -> None:
        """Check for runs to start."""
        self._poked.set()

    @contextmanager
    def room_for(self, tenant: str) -> Generator[bool]:
        """Whether a tenant may start another run; its slot is reserved while the block lasts."""
        counts = self._counts()
        room = self._open and counts.total() < self._settings.at_once
        room = room and counts[tenant] < self._settings.per_tenant
        self._reserved[tenant] += room
        try:
            yield room
        finally:
            self._reserved[tenant] -= room

    def _counts(self) -> Counter[str]:
        return Counter(self._driving.counts) + self._reserved

    async def _begin_some(self) -> None:
        counts = self._counts()
        room = self._settings.at_once - counts.total()
        if room <= 0 or not self._open:
            return
        for claim in await self._queue.next(counts, room, self._settings.per_tenant):
            self._driving.take(claim)

    async def wake(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run if a slot is free; else the next poll does."""
        with self.room_for(tenant) as room:
            claim = await self._queue.claim(tenant, run_id) if room else None
            if claim is not None:
                self._driving.take(claim)

    async def look(self) -> None:
        """Expire the claims of dead processes, so that their leases need not be waited for."""
        dead = [holder for holder in await self._queue.holders() if is_gone(holder)]
        if dead:
            await self._queue.outlived(dead)
