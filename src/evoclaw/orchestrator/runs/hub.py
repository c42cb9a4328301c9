"""Event hub: every watcher of a run gets each record once, in order; no watcher slows the run down.

The recent records of a run are kept once for all its watchers, in a bounded buffer; a watcher is a
position in that buffer.

A run that another process drives is read from the store. That process is notified that the run is
watched, and sends a notice with each commit; without notices, the hub polls the store.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Protocol, TypeAlias

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Record, RunFinished, StopReason
from evoclaw.orchestrator.runs.together import Together
from evoclaw.orchestrator.sessions.subruns import HELD, PASSING, Key
from evoclaw.store.databases.notices import Kind, Notice, Notices

PAGE = 500
"""Stored records that one read returns."""
POLL = 1.0
"""Seconds between two polls of a run that another process drives, or that has not started."""
ASSURED = 5.0
"""About how many seconds between two polls of such a run while notices come: one may be lost."""
SELDOM = 10.0
"""Most seconds between two polls of a run that waits for a person: there may be thousands of them,
for days. Records of runs in this process are delivered at once."""
AGAIN = 15.0
"""Seconds between two notices that a run is watched; well before such a notice expires."""


Announce: TypeAlias = Callable[[Sequence[Notice]], Awaitable[None]]
"""Sends notices to the other processes that share the store."""
Page: TypeAlias = tuple[StopReason | None, Sequence[Record]]
"""The stop reason of a run, and its next records."""


class TooSlow(EvoClawError):
    """A watcher reads more slowly than its run produces records."""

    def __init__(self, after: int) -> None:
        super().__init__(f"the watcher is too slow and was dropped; reconnect after record {after}")
        self.after = after
        """The last record delivered: a watcher that continues from there misses nothing."""


class Stored(Protocol):
    """The stored records of a run."""

    async def stop(self) -> StopReason | None:
        """Why the run ended, or that it waits; None while it is active."""
        ...

    async def records(self, after: int, limit: int) -> Sequence[Record]:
        """The records after a number, at most `limit`."""
        ...


class Topic:
    """One run: its recent records, and those not stored yet."""

    def __init__(self, room: int, note: Callable[[], None] = lambda: None) -> None:
        """Keep `capacity` records; `on_change` is called when the view of the run may change."""
        self._recent: deque[Record] = deque(maxlen=room)
        self._note = note
        self._said = asyncio.Event()
        self.count = 0
        """Records published since the topic exists."""
        self.stirs = 0
        """How often all watchers were told to check."""
        self.asked_at: float | None = None
        """When other processes were last notified that the run is watched."""
        self.tail: deque[Record] = deque(maxlen=HELD)
        """Records that may not be stored yet: deltas of a reply or an output."""
        self.live = False
        """This process drives the run."""
        self.readers = 0
        self.together: Together[Page] = Together()

    def publish(self, record: Record) -> None:
        """Deliver a record to all watchers; it must be stored already unless it is transient."""
        self.tail.append(record)
        if not isinstance(record.event, PASSING):
            self.tail.clear()
        self._recent.append(record)
        self.count += 1
        self._wake()
        if not isinstance(record.event, PASSING):
            self._note()

    def stir(self) -> None:
        """Have all watchers check the run."""
        self.stirs += 1
        self._wake()
        self._note()

    def _wake(self) -> None:
        self._said.set()
        self._said.clear()

    def since(self, place: int) -> Sequence[Record] | None:
        """The records after a position; None if they are no longer in the buffer."""
        missed = self.count - place
        if missed > len(self._recent):
            return None
        start = len(self._recent) - missed
        return [self._recent[number] for number in range(start, len(self._recent))]

    def is_due(self, now: float) -> bool:
        """Whether the watch notice of this run can be repeated together with others."""
        return not self.live and self.asked_at is not None and now > self.asked_at + AGAIN / 2

    async def stirred(self, seconds: float | None = None) -> None:
        """Wait until something is published, or for so many seconds."""
        if seconds is None:
            await self._said.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._said.wait()


class Hub:
    """The topics of the runs that are active or watched."""

    def __init__(
        self,
        slow: int = 1_000,
        *,
        poll: float = POLL,
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
        self._slow, self._poll = slow, poll
        self._notices, self._announce = notices or Notices(), announce
        self._topics: dict[Key, Topic] = {}
        self._next_change: asyncio.Future[None] | None = None

    async def change(self) -> None:
        """Wait until the view of any run of this process may have changed."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_change)

    def _note(self) -> None:
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    @contextmanager
    def topic(self, key: Key) -> Generator[Topic]:
        """The topic of a run, while the block lasts."""
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = Topic(self._slow, self._note)
        topic.readers += 1
        try:
            yield topic
        finally:
            topic.readers -= 1
            if not topic.readers:
                del self._topics[key]

    def stir(self, key: Key) -> None:
        """Have the watchers of a run check it."""
        if (topic := self._topics.get(key)) is not None:
            topic.stir()

    def told(self, notice: Notice | None) -> None:
        """Have the watchers of a run check it; all watchers if notices may have been missed.

        A new process may drive any run, so it is notified again which runs are watched.
        """
        kind = Kind.NEWCOMER if notice is None else notice.kind
        if notice is None or kind == Kind.NEWCOMER:
            for topic in tuple(self._topics.values()):
                topic.asked_at = None
                topic.stir()
        elif kind in (Kind.KEPT, Kind.STANDS):
            topic = self._topics.get((notice.tenant, notice.run_id))
            if topic is not None and not topic.live:
                topic.stir()
        if kind not in (Kind.KEPT, Kind.WATCHED):
            self._note()

    def _rest(self, before: float, *, waits: bool) -> float:
        """Seconds until the next poll of a run without notices."""
        least = ASSURED if self._notices.reach else self._poll
        if waits and before:
            return min(2 * before, SELDOM)
        # Thousands may watch: spread their polls.
        return least * random.uniform(0.8, 1.2) if self._notices.reach else least

    async def _ask(self, key: Key, topic: Topic) -> None:
        """Notify the other processes that a run is watched."""
        if self._announce is None or topic.live:
            return
        now, keys = asyncio.get_running_loop().time(), [key]
        if topic.asked_at is not None:
            if now < topic.asked_at + AGAIN:
                return
            # Repeated for many runs at once, so that it costs next to nothing.
            keys = [due for due, other in self._topics.items() if other.is_due(now)]
        for due in keys:
            self._topics[due].asked_at = now
        await self._announce([Notice(Kind.WATCHED, *due) for due in keys])

    async def watch(
        self, key: Key, stored: Stored, after: int = 0, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record after a number, each once: first the stored ones, then live.

        Args:
            key: Tenant and id of the run.
            source: The stored records of the run.
            after: The number of the last record that the watcher has.
            follow: Whether to continue while the run waits for a person.
        """
        reader, delay = _Reader(stored, after, follow), 0.0
        with self.topic(key) as topic:
            while not reader.over:
                # Records published up to now are stored or in `unstored`; the others come later.
                position, notified, unstored = topic.count, topic.stirs, tuple(topic.tail)
                for record in await reader.page(topic):
                    yield record
                if reader.over or reader.behind or (recent := topic.since(position)) is None:
                    continue
                if not (topic.live or recent):
                    delay = self._rest(delay, waits=reader.waits)
                    if not reader.waits:
                        await self._ask(key, topic)
                    if topic.stirs == notified:
                        await topic.stirred(delay)
                    continue
                delay = 0.0
                for record in reader.new(unstored):
                    yield record
                async with aclosing(reader.listen(topic, position)) as records:
                    async for record in records:
                        yield record

    async def until(
        self, key: Key, there: Callable[[], Awaitable[bool]], *, told: bool = False
    ) -> None:
        """Wait until a condition of a run holds; it is checked whenever the run changes.

        Args:
            key: Tenant and id of the run.
            condition: Whether it holds.
            notified: Whether notices tell of changes to it.
        """
        with self.topic(key) as topic:
            while True:
                before = topic.count, topic.stirs
                if await there():
                    return
                if (topic.count, topic.stirs) == before:
                    await topic.stirred(self._rest(0.0, waits=False) if told else self._poll)


class _Reader:
    """The position of a watcher in the records of a run."""

    def __init__(self, stored: Stored, after: int, follow: bool) -> None:
        self._stored, self._after, self._follow = stored, after, follow
        self.over = False
        self.behind = False
        """The store has more records."""
        self.waits = False
        """The run waits for a person, as far as the store knows."""

    async def page(self, topic: Topic) -> Sequence[Record]:
        """Read stored records; finished if the run had ended before and no more are stored."""
        after, live = self._after, topic.live
        if live:
            stop, page = await self._read(after, live=True)
        else:
            # All watchers of a remote run are notified at once, and most are at the same position.
            read = partial(self._read, after, live=False)
            stop, page = await topic.together.read(after, read)
        if page:
            self._after = page[-1].seq
        self.behind, self.waits = len(page) == PAGE, stop is StopReason.WAITING
        self.over = not self.behind and self._ends(stop)
        return page

    async def _read(self, after: int, *, live: bool) -> Page:
        stop = None if live else await self._stored.stop()
        return stop, await self._stored.records(after, PAGE)

    def new(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that this watcher has not got yet."""
        fresh = [record for record in records if record.seq > self._after]
        if fresh:
            self._after = fresh[-1].seq
            if isinstance(end := fresh[-1].event, RunFinished):
                self.over = self._ends(end.stop)
        return fresh

    async def listen(self, topic: Topic, place: int) -> AsyncGenerator[Record, None]:
        """The records from a position on, while this process drives the run."""
        while not self.over and (topic.live or place < topic.count):
            records = topic.since(place)
            if records is None:
                raise TooSlow(self._after)
            place += len(records)
            for record in self.new(records):
                yield record
            if not records:
                await topic.stirred()

    def _ends(self, stop: StopReason | None) -> bool:
        if stop is None:
            return False
        return stop is not StopReason.WAITING or not self._follow
