"""The records of a stored run: buffered until they are stored, and what they say it already did.

Transient records are deltas of a reply or an output: they are held until they are stored with the
next durable one. A watcher in another process sees only stored records, so while there is one, the
buffer is flushed after a short delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from evoclaw.core.events import (
    CallDelayed,
    CallJudged,
    CallOutput,
    Prompted,
    ReasoningDelta,
    Record,
    RunFinished,
    TextDelta,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.ledgers import CALLS, DOLLARS, TOKENS, TURNS
from evoclaw.core.messages import (
    Message,
    Reply,
    ToolResult,
)
from evoclaw.governance.budget.cost_estimator import to_microdollars
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.store.sessions.sessions import RunUsage

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
        self._context = copy_context()
        """Of the run, in whose write scope the records are stored."""
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
        """Return and remove all records, for the caller to store at once.

        Raises the error of an earlier flush: records before these are missing.
        """
        if self._problem is not None:
            raise self._problem
        return self._remove_all()

    def _remove_all(self) -> list[Record]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._records = self._records, []
        return records

    async def close(self) -> None:
        """Drop the records and cancel a flush that is under way."""
        self._remove_all()
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])

    def _flush(self) -> None:
        self._timer = None
        if self._flushing is not None or self._problem is not None:
            return  # `_flushed` flushes the rest
        started = asyncio.get_running_loop().time()
        self._flushing = asyncio.create_task(self._store_all(), context=self._context)
        self._flushing.add_done_callback(partial(self._flushed, started))

    async def _store_all(self) -> None:
        # Taken only now: nothing is sent between this and the write.
        records, self._records = self._records, []
        await self._store(records)

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


TRANSIENT_EVENTS = (
    TextDelta | ReasoningDelta | CallOutput | CallDelayed | ToolsChanged | TurnStarted | CallJudged
)
"""Events whose records are stored together with the next durable one: if a crash loses them,
nothing was done that they tell of."""


MAX_BUFFERED_RECORDS = 1_000
"""Transient records that are buffered; more are stored without waiting for a durable one."""


RESUME_SEQ_GAP = 2 * MAX_BUFFERED_RECORDS
"""Record numbers that a resumed run skips: a watcher may have seen records that were not stored,
and must not take new records with the same numbers for those."""


def prior_spend(spent: RunUsage, settings: BudgetSettings) -> dict[str, int]:
    """What a run spent before a restart, for a ledger that does not know it."""
    found = {TURNS: spent.turns, CALLS: spent.calls, TOKENS: spent.tokens_in + spent.tokens_out}
    if spent.cost is not None:
        found[DOLLARS] = to_microdollars(spent.cost)
    elif settings.dollars is not None and settings.unpriced == "refuse":
        # A reply had no known price: the whole budget counts as spent.
        found[DOLLARS] = to_microdollars(settings.dollars)
    return found


def last_used_seq(records: Sequence[Record]) -> int:
    """The last record number that a run has used, also for records seen by watchers and lost."""
    if not records:
        return 0
    last = records[-1]
    return last.seq if isinstance(last.event, RunFinished) else last.seq + RESUME_SEQ_GAP


def steering_count(records: Sequence[Record]) -> int:
    """How many steering messages a run has read."""
    events = [record.event for record in records]
    return sum(isinstance(event, Prompted) and event.why == "steer" for event in events)


def drop_incomplete_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without a last reply whose calls are not all answered."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ToolResult):
        end -= 1
    reply = messages[end - 1] if end else None
    cut = isinstance(reply, Reply) and len(reply.calls) > len(messages) - end
    return messages[: end - 1] if cut else messages
