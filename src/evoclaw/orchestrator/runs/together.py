"""Single flight: concurrent identical reads share one result, as a thousand may watch one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Reading(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.readers = 0


class Together(Generic[T]):
    """Shares a read among callers that ask before it starts; later callers start the next read."""

    def __init__(self) -> None:
        self._coming: dict[Hashable, _Reading[T]] = {}

    async def read(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work once for all callers with the same key that ask before it starts."""
        flight = self._coming.get(key)
        if flight is None:
            task = asyncio.create_task(self._begin(key, work))
            flight = self._coming[key] = _Reading(task)
        flight.readers += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.readers -= 1
            if not (flight.readers or flight.task.done()):
                await self._end(key, flight)

    async def _begin(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        del self._coming[key]
        return await work()

    async def _end(self, key: Hashable, flight: _Reading[T]) -> None:
        """Cancel work that no caller waits for any more."""
        if self._coming.get(key) is flight:
            del self._coming[key]
        flight.task.cancel()
        await asyncio.wait([flight.task])
