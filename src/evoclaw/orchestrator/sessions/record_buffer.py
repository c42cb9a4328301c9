"""Record buffer: holds transient records until they are stored with the next durable one.

Transient records are deltas of a reply or an output. A watcher in another process sees only stored
records, so while there is one, the buffer is flushed after a short delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from evoclaw.core.events import (
    CallJudged,
    CallOutput,
    ReasoningDelta,
    Record,
    TextDelta,
    ToolsChanged,
    TurnStarted,
)

MIN_FLUSH_DELAY_S = 0.05
"""Seconds between two flushes for watchers in other processes."""
MAX_FLUSH_DELAY_S = 1.0
"""Most seconds between two flushes, when the store is busy."""
FLUSH_DELAY_FACTOR = 5
"""The flush delay is this many times the duration of the last flush."""


class RecordBuffer:
    """The records of a run that are not stored yet, in order."""

    def __init__(
        self,
        store: Callable[[Sequence[Record]], Coroutine[Any, Any, None]],
        is_watched: Callable[[], bool],
    ) -> None:
        """Choose where the records go.

        Args:
            store: Stores records; without records, it notifies watchers that there are none.
            is_watched: Whether another process watches the run.
        """
        self._store, self._is_watched = store, is_watched
        self._records: list[Record] = []
        self._flush_delay_s = MIN_FLUSH_DELAY_S
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._problem: BaseException | None = None

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        """Add a record."""
        self._records.append(record)
        if self._timer is None and self._is_watched():
            self.schedule_flush(self._flush_delay_s)

    def schedule_flush(self, seconds: float = 0.0) -> None:
        """Flush in so many seconds."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._flush)

    async def wait_flushed(self) -> None:
        """Wait for a flush that is under way; raise its error."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        if self._problem is not None:
            raise self._problem

    def drain(self) -> list[Record]:
        """Return and remove all records, for the caller to store; call `wait_flushed` first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._records = self._records, []
        return records

    async def close(self) -> None:
        """Drop the records and cancel a flush that is under way."""
        self.drain()
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])

    def _flush(self) -> None:
        self._timer = None
        if self._flushing is not None or self._problem is not None:
            return  # `_flushed` flushes the rest
        records, self._records = self._records, []
        started = asyncio.get_running_loop().time()
        self._flushing = asyncio.create_task(self._store(records))
        self._flushing.add_done_callback(partial(self._flushed, started))

    def _flushed(self, started: float, saving: asyncio.Task[None]) -> None:
        self._flushing = None
        took = asyncio.get_running_loop().time() - started
        self._flush_delay_s = min(
            max(MIN_FLUSH_DELAY_S, FLUSH_DELAY_FACTOR * took), MAX_FLUSH_DELAY_S
        )
        if not saving.cancelled():
            # Raised when the next durable record is stored.
            self._problem = saving.exception()
        if self._records and self._problem is None:
            self.schedule_flush(self._flush_delay_s)


TRANSIENT_EVENTS = TextDelta | ReasoningDelta | CallOutput | ToolsChanged | TurnStarted | CallJudged
"""Events whose records are stored together with the next durable one: if a crash loses them,
nothing was done that they tell of."""


MAX_BUFFERED_RECORDS = 1_000
"""Transient records that are buffered; more are stored without waiting for a durable one."""
