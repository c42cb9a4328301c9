"""Single flight: concurrent identical reads share one result, as a thousand may watch one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0


class SingleFlight(Generic[T]):
    """Shares a read among callers that ask before it starts; later callers start the next read."""

    def __init__(self) -> None:
        self._pending: dict[Hashable, _Flight[T]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work once for all callers with the same key that ask before it starts."""
        flight = self._pending.get(key)
        if flight is None:
            task = asyncio.create_task(self._start(key, work))
            flight = self._pending[key] = _Flight(task)
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not (flight.waiters or flight.task.done()):
                await self._abandon(key, flight)

    async def _start(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        del self._pending[key]
        return await work()

    async def _abandon(self, key: Hashable, flight: _Flight[T]) -> None:
        """Cancel work that no caller waits for any more."""
        if self._pending.get(key) is flight:
            del self._pending[key]
        flight.task.cancel()
        await asyncio.wait([flight.task])
