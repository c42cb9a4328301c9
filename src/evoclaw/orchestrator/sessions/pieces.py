"""Record buffer: holds transient records until they are stored with the next durable one.

Transient records are deltas of a reply or an output. A watcher in another process sees only stored
records, so while there is one, the buffer is flushed after a short delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from evoclaw.core.events import Record

SOON = 0.05
"""Seconds between two flushes for watchers in other processes."""
LATEST = 1.0
"""Most seconds between two flushes, when the store is busy."""
SHARE = 5
"""The flush delay is this many times the duration of the last flush."""


class Pieces:
    """The records of a run that are not stored yet, in order."""

    def __init__(
        self,
        keep: Callable[[Sequence[Record]], Coroutine[Any, Any, None]],
        wanted: Callable[[], bool],
    ) -> None:
        """Choose where the records go.

        Args:
            store: Stores records; without records, it notifies watchers that there are none.
            is_watched: Whether another process watches the run.
        """
        self._keep, self._wanted = keep, wanted
        self._held: list[Record] = []
        self._soon = SOON
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._problem: BaseException | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, record: Record) -> None:
        """Add a record."""
        self._held.append(record)
        if self._timer is None and self._wanted():
            self.hurry(self._soon)

    def hurry(self, seconds: float = 0.0) -> None:
        """Flush in so many seconds."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._save)

    async def settled(self) -> None:
        """Wait for a flush that is under way; raise its error."""
        while self._saving is not None:
            await asyncio.wait([self._saving])
        if self._problem is not None:
            raise self._problem

    def take(self) -> list[Record]:
        """Return and remove all records, for the caller to store; call `wait_flushed` first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._held = self._held, []
        return records

    async def close(self) -> None:
        """Drop the records and cancel a flush that is under way."""
        self.take()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])

    def _save(self) -> None:
        self._timer = None
        if self._saving is not None or self._problem is not None:
            return  # `_flushed` flushes the rest
        records, self._held = self._held, []
        started = asyncio.get_running_loop().time()
        self._saving = asyncio.create_task(self._keep(records))
        self._saving.add_done_callback(partial(self._saved, started))

    def _saved(self, started: float, saving: asyncio.Task[None]) -> None:
        self._saving = None
        took = asyncio.get_running_loop().time() - started
        self._soon = min(max(SOON, SHARE * took), LATEST)
        if not saving.cancelled():
            # Raised when the next durable record is stored.
            self._problem = saving.exception()
        if self._held and self._problem is None:
            self.hurry(self._soon)
