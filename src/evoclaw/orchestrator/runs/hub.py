"""Who watches the runs that go on: every record once, in order, and nobody holds a run up.

What was said of a run is kept once for all who watch it, and bounded: a watcher is a place in it.

A run that another process drives is read from the store. Whoever drives it is told that somebody
watches, and tells of each commit; where no such notices come, the store is looked at often.
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
"""Stored records that are read at once."""
POLL = 1.0
"""Seconds between two looks at a run that another process drives, or that has not begun."""
ASSURED = 5.0
"""Seconds between two looks at such a run, more or less, while notices come: one may be lost."""
SELDOM = 10.0
"""Seconds between two looks, at most, at a run that waits for somebody: there may be thousands of
them, for days. Whatever goes on in this process is told at once."""
AGAIN = 15.0
"""Seconds before it is said again that somebody watches a run; well before it is forgotten."""


Announce: TypeAlias = Callable[[Sequence[Notice]], Awaitable[None]]
"""Tells those who share the store where to look."""
Page: TypeAlias = tuple[StopReason | None, Sequence[Record]]
"""How a run stood, and the next of its records."""


class TooSlow(EvoClawError):
    """A watcher reads more slowly than its run speaks."""

    def __init__(self, after: int) -> None:
        super().__init__(f"you read too slowly; go on after record {after}")
        self.after = after
        """The last record that it was given: who goes on from there misses nothing."""


class Stored(Protocol):
    """Where the records of a run are kept."""

    async def stop(self) -> StopReason | None:
        """Why it ended, or that it waits; None while it goes on."""
        ...

    async def records(self, after: int, limit: int) -> Sequence[Record]:
        """The next ones."""
        ...


class Topic:
    """One run: what was said lately, and what is not kept yet."""

    def __init__(self, room: int, note: Callable[[], None] = lambda: None) -> None:
        """Remember so many records; `note` is called whenever the run may be shown otherwise."""
        self._recent: deque[Record] = deque(maxlen=room)
        self._note = note
        self._said = asyncio.Event()
        self.count = 0
        """Records that were said since there is somebody here."""
        self.stirs = 0
        """How often everybody was to look."""
        self.asked_at: float | None = None
        """When it was said last that somebody watches."""
        self.tail: deque[Record] = deque(maxlen=HELD)
        """Those that the store may not have yet: pieces of a reply or an output."""
        self.live = False
        """It goes on in this process."""
        self.readers = 0
        self.together: Together[Page] = Together()

    def publish(self, record: Record) -> None:
        """Tell everybody; whatever is not in passing must be kept already."""
        self.tail.append(record)
        if not isinstance(record.event, PASSING):
            self.tail.clear()
        self._recent.append(record)
        self.count += 1
        self._wake()
        if not isinstance(record.event, PASSING):
            self._note()

    def stir(self) -> None:
        """Have everybody look."""
        self.stirs += 1
        self._wake()
        self._note()

    def _wake(self) -> None:
        self._said.set()
        self._said.clear()

    def since(self, place: int) -> Sequence[Record] | None:
        """What was said after so many records; None if that is no longer remembered."""
        missed = self.count - place
        if missed > len(self._recent):
            return None
        start = len(self._recent) - missed
        return [self._recent[number] for number in range(start, len(self._recent))]

    def is_due(self, now: float) -> bool:
        """Whether it can be said again, with others, that somebody watches."""
        return not self.live and self.asked_at is not None and now > self.asked_at + AGAIN / 2

    async def stirred(self, seconds: float | None = None) -> None:
        """Wait until something was said, or so long."""
        if seconds is None:
            await self._said.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._said.wait()


class Hub:
    """The topics that somebody speaks or listens in."""

    def __init__(
        self,
        slow: int = 1_000,
        *,
        poll: float = POLL,
        notices: Notices | None = None,
        announce: Announce | None = None,
    ) -> None:
        """Know nobody yet.

        Args:
            slow: Records that a watcher may be behind.
            poll: Seconds between two looks at a run that goes on elsewhere, without notices.
            notices: What is heard of what others do; see `told`.
            announce: Tells others that somebody watches.
        """
        self._slow, self._poll = slow, poll
        self._notices, self._announce = notices or Notices(), announce
        self._topics: dict[Key, Topic] = {}
        self._next_change: asyncio.Future[None] | None = None

    async def change(self) -> None:
        """Wait until any run that goes on here may be shown otherwise."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_change)

    def _note(self) -> None:
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    @contextmanager
    def topic(self, key: Key) -> Generator[Topic]:
        """The topic of a run, for as long as the block lasts."""
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
        """Have those who watch a run look at it."""
        if (topic := self._topics.get(key)) is not None:
            topic.stir()

    def told(self, notice: Notice | None) -> None:
        """Have those look whom a notice is for; everybody, if some may have been missed.

        Who has just come may drive any run, and is told again which are watched.
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
        """Seconds until the next look at a run of which nothing is heard."""
        least = ASSURED if self._notices.reach else self._poll
        if waits and before:
            return min(2 * before, SELDOM)
        # Thousands may watch: not all of them look at once.
        return least * random.uniform(0.8, 1.2) if self._notices.reach else least

    async def _ask(self, key: Key, topic: Topic) -> None:
        """Have whoever drives a run tell of it; who is asked for the first time says so."""
        if self._announce is None or topic.live:
            return
        now, keys = asyncio.get_running_loop().time(), [key]
        if topic.asked_at is not None:
            if now < topic.asked_at + AGAIN:
                return
            # Said again for many at once, so that it costs next to nothing.
            keys = [one for one, other in self._topics.items() if other.is_due(now)]
        for one in keys:
            self._topics[one].asked_at = now
        await self._announce([Notice(Kind.WATCHED, *one) for one in keys])

    async def watch(
        self, key: Key, stored: Stored, after: int = 0, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record after one, each once: those that are kept, then the rest as it happens.

        Args:
            key: Whose run.
            stored: Where its records are kept.
            after: The number of the last record that is not wanted.
            follow: Whether to go on while the run waits for somebody.
        """
        reader, pause = _Reader(stored, after, follow), 0.0
        with self.topic(key) as topic:
            while not reader.over:
                # Whatever was said up to now is kept, or in the tail; the rest is still to come.
                place, stirs, tail = topic.count, topic.stirs, tuple(topic.tail)
                for record in await reader.page(topic):
                    yield record
                if reader.over or reader.behind or (said := topic.since(place)) is None:
                    continue
                if not (topic.live or said):
                    pause = self._rest(pause, waits=reader.waits)
                    if not reader.waits:
                        await self._ask(key, topic)
                    if topic.stirs == stirs:
                        await topic.stirred(pause)
                    continue
                pause = 0.0
                for record in reader.new(tail):
                    yield record
                async with aclosing(reader.listen(topic, place)) as records:
                    async for record in records:
                        yield record

    async def until(
        self, key: Key, there: Callable[[], Awaitable[bool]], *, told: bool = False
    ) -> None:
        """Wait until something holds of a run, looked at whenever something happened there.

        Args:
            key: Whose run.
            there: Whether it holds.
            told: Whether there are notices of it.
        """
        with self.topic(key) as topic:
            while True:
                place, stirs = topic.count, topic.stirs
                if await there():
                    return
                if (topic.count, topic.stirs) == (place, stirs):
                    await topic.stirred(self._rest(0.0, waits=False) if told else self._poll)


class _Reader:
    """How far a watcher has come."""

    def __init__(self, stored: Stored, after: int, follow: bool) -> None:
        self._stored, self._after, self._follow = stored, after, follow
        self.over = False
        self.behind = False
        """The store has more."""
        self.waits = False
        """The run waits for somebody, as far as the store knows."""

    async def page(self, topic: Topic) -> Sequence[Record]:
        """What the store has; it is over if the run was when this began, and that was all."""
        after, live = self._after, topic.live
        if live:
            stop, page = await self._read(after, live=True)
        else:
            # All who watch a run elsewhere are stirred at once, and most have come equally far.
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
        """Those that were not given yet."""
        fresh = [record for record in records if record.seq > self._after]
        if fresh:
            self._after = fresh[-1].seq
            if isinstance(end := fresh[-1].event, RunFinished):
                self.over = self._ends(end.stop)
        return fresh

    async def listen(self, topic: Topic, place: int) -> AsyncGenerator[Record, None]:
        """What is said from a place on, while the run goes on here."""
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
