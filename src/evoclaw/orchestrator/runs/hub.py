"""Event hub: every watcher of a run gets each record once, in order; no watcher slows the run down.

The recent records of a run are kept once for all its watchers, in a bounded buffer; a watcher is a
position in that buffer.

A run that another process drives is read from the store. That process is notified that the run is
watched, and sends a notice with each commit; without notices, the hub polls the store.

Single flight: concurrent identical reads share one result, as a thousand may watch one run.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import CallFinished, Record, RunFinished, StopReason
from evoclaw.orchestrator.runs.views import StoredRecords
from evoclaw.orchestrator.sessions.run_ids import TenantKey
from evoclaw.orchestrator.sessions.run_records import MAX_BUFFERED_RECORDS, TRANSIENT_EVENTS
from evoclaw.store.databases.notices import Notice, NoticeKind, Notices

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


RECORDS_PER_PAGE = 500
"""Stored records that one read returns."""
POLL_INTERVAL_S = 1.0
"""Seconds between two polls of a run that another process drives, or that has not started."""
NOTIFIED_POLL_INTERVAL_S = 5.0
"""About how many seconds between two polls of such a run while notices come: one may be lost."""
MAX_WAITING_POLL_INTERVAL_S = 10.0
"""Most seconds between two polls of a run that waits for a person: there may be thousands of them,
for days. Records of runs in this process are delivered at once."""
ANNOUNCED_POLL_INTERVAL_S = 0.5
"""Seconds until the first poll after other processes were notified that a run is watched: the run
may have ended before its driver knew."""
WATCH_NOTICE_INTERVAL_S = 15.0
"""Seconds between two notices that a run is watched; well before such a notice expires."""


Announce: TypeAlias = Callable[[Sequence[Notice]], Awaitable[None]]
"""Sends notices to the other processes that share the store."""
RecordPage: TypeAlias = tuple[StopReason | None, Sequence[Record]]
"""The stop reason of a run, and its next records."""


class WatcherTooSlow(EvoClawError):
    """A watcher reads more slowly than its run produces records."""

    def __init__(self, after: int) -> None:
        super().__init__(f"the watcher is too slow and was dropped; reconnect after record {after}")
        self.after = after
        """The last record delivered: a watcher that continues from there misses nothing."""


class Topic:
    """One run: its recent records, and those not stored yet."""

    def __init__(self, capacity: int, on_change: Callable[[], None] = lambda: None) -> None:
        """Keep `capacity` records; `on_change` is called when the view of the run may change."""
        self._recent: deque[Record] = deque(maxlen=capacity)
        self._on_change = on_change
        self._published = asyncio.Event()
        self.published_count = 0
        """Records published since the topic exists."""
        self.notify_count = 0
        """How often all watchers were notified to check."""
        self.announced_at: float | None = None
        """When other processes were last notified that the run is watched."""
        self.unstored: deque[Record] = deque(maxlen=2 * MAX_BUFFERED_RECORDS)
        """Records that may not be stored yet: deltas of a reply or an output, and those whose
        commit is deferred."""
        self._held: list[Record] = []
        """Records that are published when they are committed, and those that came after them."""
        self.is_local = False
        """This process drives the run."""
        self.began_here = False
        """This process drives the run since its first record."""
        self.users = 0
        self.single_flight: SingleFlight[RecordPage] = SingleFlight()

    def publish(self, record: Record, *, committed: bool = True) -> None:
        """Deliver a record to all watchers; the result of a call only once it is committed.

        Args:
            record: The record.
            committed: Whether it is on disk; if not, `release` is called when it is.
        """
        is_transient = isinstance(record.event, TRANSIENT_EVENTS)
        if not committed and (self._held or isinstance(record.event, CallFinished)):
            self._held.append(record)
            return
        if committed and self._held:
            self.release()
        self.unstored.append(record)
        if committed and not is_transient:
            self.unstored.clear()
        self._recent.append(record)
        self.published_count += 1
        self._wake_waiters()
        if not is_transient:
            self._on_change()

    def release(self) -> None:
        """Deliver the records that are committed by now."""
        held, self._held = self._held, []
        for record in held:
            self.publish(record)

    def discard_unstored(self) -> None:
        """Forget records that may not be stored: this process no longer drives the run."""
        self.unstored.clear()
        self._held.clear()

    def _wake_waiters(self) -> None:
        self._published.set()
        self._published.clear()

    def notify(self) -> None:
        """Have all watchers check the run."""
        self.notify_count += 1
        self._wake_waiters()
        self._on_change()

    def since(self, position: int) -> Sequence[Record] | None:
        """The records after a position; None if they are no longer in the buffer."""
        missed = self.published_count - position
        if missed > len(self._recent):
            return None
        start = len(self._recent) - missed
        return [self._recent[number] for number in range(start, len(self._recent))]

    @property
    def has_all_records(self) -> bool:
        """Whether no record of the run is in the store only."""
        return self.is_local and self.began_here and self.published_count <= len(self._recent)

    def is_announcement_due(self, now: float) -> bool:
        """Whether the watch notice of this run can be repeated together with others."""
        return (
            not self.is_local
            and self.announced_at is not None
            and now > self.announced_at + WATCH_NOTICE_INTERVAL_S / 2
        )

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until something is published, or for so many seconds."""
        if seconds is None:
            await self._published.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._published.wait()


class Hub:
    """The topics of the runs that are active or watched."""

    def __init__(
        self,
        max_lag: int = 1_000,
        *,
        poll_interval_s: float = POLL_INTERVAL_S,
        notices: Notices | None = None,
        announce: Announce | None = None,
    ) -> None:
        """Start without topics.

        Args:
            max_lag: Records that a watcher may lag behind.
            poll_interval_s: Seconds between two polls of a run of another process, without notices.
            notices: The notices from other processes; see `on_notice`.
            announce: Notifies other processes that a run is watched.
        """
        self._max_lag, self._poll_interval_s = max_lag, poll_interval_s
        self._notices, self._announce = notices or Notices(), announce
        self._topics: dict[TenantKey, Topic] = {}
        self._next_change: asyncio.Future[None] | None = None

    async def wait_for_change(self) -> None:
        """Wait until the view of any run of this process may have changed."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_change)

    def _notify_change(self) -> None:
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    @contextmanager
    def topic(self, key: TenantKey) -> Generator[Topic]:
        """The topic of a run, while the block lasts."""
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = Topic(self._max_lag, self._notify_change)
        topic.users += 1
        try:
            yield topic
        finally:
            topic.users -= 1
            if not topic.users:
                del self._topics[key]

    def notify(self, key: TenantKey) -> None:
        """Have the watchers of a run check it."""
        if (topic := self._topics.get(key)) is not None:
            topic.notify()

    def on_notice(self, notice: Notice | None) -> None:
        """Have the watchers of a run check it; all watchers if notices may have been missed.

        A new process may drive any run, so it is notified again which runs are watched.
        """
        kind = NoticeKind.LISTENER_JOINED if notice is None else notice.kind
        if notice is None or kind == NoticeKind.LISTENER_JOINED:
            for topic in tuple(self._topics.values()):
                topic.announced_at = None
                topic.notify()
        elif kind in (NoticeKind.RECORDS_STORED, NoticeKind.STATE_CHANGED):
            topic = self._topics.get((notice.tenant, notice.run_id))
            if topic is not None and not topic.is_local:
                topic.notify()
        if kind not in (NoticeKind.RECORDS_STORED, NoticeKind.WATCHED):
            self._notify_change()

    def _poll_delay(self, before: float, *, is_waiting: bool) -> float:
        """Seconds until the next poll of a run without notices."""
        least = NOTIFIED_POLL_INTERVAL_S if self._notices.is_live else self._poll_interval_s
        if is_waiting and before:
            return min(2 * before, MAX_WAITING_POLL_INTERVAL_S)
        # Thousands may watch: spread their polls.
        return least * random.uniform(0.8, 1.2) if self._notices.is_live else least

    async def _announce_watch(self, key: TenantKey, topic: Topic) -> bool:
        """Notify the other processes that a run is watched; whether they may not have known."""
        if self._announce is None or topic.is_local:
            return False
        now, keys, is_new = asyncio.get_running_loop().time(), [key], topic.announced_at is None
        if topic.announced_at is not None:
            if now < topic.announced_at + WATCH_NOTICE_INTERVAL_S:
                return False
            # Repeated for many runs at once, so that it costs next to nothing.
            keys = [due for due, other in self._topics.items() if other.is_announcement_due(now)]
        for due in keys:
            self._topics[due].announced_at = now
        await self._announce([Notice(NoticeKind.WATCHED, *due) for due in keys])
        return is_new

    async def watch(
        self, key: TenantKey, source: StoredRecords, after: int = 0, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record after a number, each once: first the stored ones, then live.

        Args:
            key: Tenant and id of the run.
            source: The stored records of the run.
            after: The number of the last record that the watcher has.
            follow: Whether to continue while the run waits for a person.
        """
        reader, delay = _RecordReader(source, after, follow), 0.0
        with self.topic(key) as topic:
            while not reader.finished:
                # Records published up to now are stored or in `unstored`; the others come later.
                position, notified, unstored = (
                    topic.published_count,
                    topic.notify_count,
                    tuple(topic.unstored),
                )
                if topic.has_all_records:
                    position, unstored = 0, ()
                else:
                    for record in await reader.read_page(topic):
                        yield record
                if reader.finished or reader.has_more or (recent := topic.since(position)) is None:
                    continue
                if not (topic.is_local or recent):
                    delay = self._poll_delay(delay, is_waiting=reader.is_waiting)
                    if not reader.is_waiting and await self._announce_watch(key, topic):
                        delay = min(delay, ANNOUNCED_POLL_INTERVAL_S)
                    if topic.notify_count == notified:
                        await topic.wait(delay)
                    continue
                delay = 0.0
                for record in reader.unseen(unstored):
                    yield record
                async with aclosing(reader.listen(topic, position)) as records:
                    async for record in records:
                        yield record

    async def wait_until(
        self, key: TenantKey, condition: Callable[[], Awaitable[bool]], *, notified: bool = False
    ) -> None:
        """Wait until a condition of a run holds; it is checked whenever the run changes.

        Args:
            key: Tenant and id of the run.
            condition: Whether it holds.
            notified: Whether notices tell of changes to it.
        """
        with self.topic(key) as topic:
            while True:
                before = topic.published_count, topic.notify_count
                if await condition():
                    return
                delay = self._poll_interval_s
                if notified:
                    delay = self._poll_delay(0.0, is_waiting=False)
                    if await self._announce_watch(key, topic):
                        delay = min(delay, ANNOUNCED_POLL_INTERVAL_S)
                if (topic.published_count, topic.notify_count) == before:
                    await topic.wait(delay)


class _RecordReader:
    """The position of a watcher in the records of a run."""

    def __init__(self, source: StoredRecords, after: int, follow: bool) -> None:
        self._source, self._after, self._follow = source, after, follow
        self.finished = False
        self.has_more = False
        """The store has more records."""
        self.is_waiting = False
        """The run waits for a person, as far as the store knows."""

    async def read_page(self, topic: Topic) -> Sequence[Record]:
        """Read stored records; finished if the run had ended before and no more are stored."""
        after, live = self._after, topic.is_local
        if live:
            stop, page = await self._read_source(after, live=True)
        else:
            # All watchers of a remote run are notified at once, and most are at the same position.
            read = partial(self._read_source, after, live=False)
            stop, page = await topic.single_flight.run(after, read)
        if page:
            self._after = page[-1].seq
        self.has_more, self.is_waiting = len(page) == RECORDS_PER_PAGE, stop is StopReason.WAITING
        self.finished = not self.has_more and self._ends(stop)
        return page

    async def _read_source(self, after: int, *, live: bool) -> RecordPage:
        stop = None if live else await self._source.stop_reason()
        return stop, await self._source.records(after, RECORDS_PER_PAGE)

    def unseen(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that this watcher has not got yet."""
        new_records = [record for record in records if record.seq > self._after]
        if new_records:
            self._after = new_records[-1].seq
            if isinstance(end := new_records[-1].event, RunFinished):
                self.finished = self._ends(end.stop)
        return new_records

    async def listen(self, topic: Topic, position: int) -> AsyncGenerator[Record, None]:
        """The records from a position on, while this process drives the run."""
        while not self.finished and (topic.is_local or position < topic.published_count):
            records = topic.since(position)
            if records is None:
                raise WatcherTooSlow(self._after)
            position += len(records)
            for record in self.unseen(records):
                yield record
            if not records:
                await topic.wait()

    def _ends(self, stop: StopReason | None) -> bool:
        if stop is None:
            return False
        return stop is not StopReason.WAITING or not self._follow
