"""What many ask at the same moment is read once: a thousand may watch the same run."""

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
    """Readings that are about to begin. Who comes when one has begun needs the next one."""

    def __init__(self) -> None:
        self._coming: dict[Hashable, _Reading[T]] = {}

    async def read(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Read something, together with all who ask for the same before it begins."""
        reading = self._coming.get(key)
        if reading is None:
            task = asyncio.create_task(self._begin(key, work))
            reading = self._coming[key] = _Reading(task)
        reading.readers += 1
        try:
            return await asyncio.shield(reading.task)
        finally:
            reading.readers -= 1
            if not (reading.readers or reading.task.done()):
                await self._end(key, reading)

    async def _begin(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        del self._coming[key]
        return await work()

    async def _end(self, key: Hashable, reading: _Reading[T]) -> None:
        """Nobody is left who wants it."""
        if self._coming.get(key) is reading:
            del self._coming[key]
        reading.task.cancel()
        await asyncio.wait([reading.task])
