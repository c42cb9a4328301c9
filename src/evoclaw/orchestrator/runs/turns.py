"""Which runs this process begins, and when: told by the table itself where one process is alone.

On PostgreSQL, where there may be several, an engine gives them out: see `jobs.py`.
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
"""Does something that may fail while the store cannot be used."""


class Turns(Protocol):
    """Who says which runs this process is to drive."""

    async def begin(self) -> None:
        """Make ready to serve; raises if that cannot be."""
        ...

    async def serve(self, trying: Trying) -> None:
        """Have runs driven whose turn it is, until this is cancelled."""
        ...

    def close(self) -> None:
        """Begin no more."""
        ...

    def poke(self) -> None:
        """Something may be begun."""
        ...

    def room_for(self, tenant: str) -> AbstractContextManager[bool]:
        """Whether a run may be begun by whoever asks; its place is kept while the block lasts."""
        ...

    async def wake(self, tenant: str, run_id: str) -> None:
        """Go on with a run that waits."""
        ...

    async def look(self) -> None:
        """See who is gone, and what he has left."""
        ...


class OwnTurns:
    """Begins what the table says, whenever there is room."""

    def __init__(self, driving: Driving, queue: RunQueue, settings: RunSettings) -> None:
        self._driving, self._queue, self._settings = driving, queue, settings
        self._poked = asyncio.Event()
        self._reserved: Counter[str] = Counter()
        """Places that are being taken, by tenant."""
        self._open = False

    async def begin(self) -> None:
        """Be ready."""
        self._open = True
        self.poke()

    async def serve(self, trying: Trying) -> None:
        """Begin what is queued, whenever there may be room."""
        while True:
            await self._poked.wait()
            self._poked.clear()
            await trying(self._begin_some)

    def close(self) -> None:
        """Begin no more."""
        self._open = False

    def poke(self) -> None:
        """Something may be begun."""
        self._poked.set()

    @contextmanager
    def room_for(self, tenant: str) -> Generator[bool]:
        """Whether another run of a tenant may go on; its place is kept while the block lasts."""
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
        """Go on with a run that waits, if there is room; else the next look does."""
        with self.room_for(tenant) as room:
            claim = await self._queue.claim(tenant, run_id) if room else None
            if claim is not None:
                self._driving.take(claim)

    async def look(self) -> None:
        """What is held by a process that is gone need not be waited for."""
        gone = [holder for holder in await self._queue.holders() if is_gone(holder)]
        if gone:
            await self._queue.outlived(gone)
