"""What changes, as it changes: looked for once for all who watch, told to each what is his.

One feed serves a process. It looks when something happened here, and a few times in a while at
what other processes did; when nobody watches, it does nothing. What changed is written down once,
whoever is told. A watcher who is slow is told how things stand when he comes to read: never more
than there are things.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeAlias

from msgspec import Raw, Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.seldom import Seldom, times
from evoclaw.store.databases.changes import Mark

logger = logging.getLogger(__name__)
MIN_POLL_INTERVAL_S = 0.5
"""Seconds between two looks, at least, however much happens."""
MAX_POLL_INTERVAL_S = 0.75
"""Seconds between two looks, at most: what others did is seen by then."""
MAX_PENDING_ITEMS = 2_000
"""Changed things that are kept for one watcher; whoever is further behind is told everything."""


class FeedItem(Struct, frozen=True):
    """One thing as it is shown, written down already."""

    id: str
    owner: str | None
    """Whose it is, of those who watch the tenant; None is everybody's."""
    shown: Raw


class FeedUpdate(Struct, frozen=True):
    """What a watcher is told at once."""

    items: tuple[Raw, ...]
    whole: bool
    """These are all; otherwise those that changed."""


class FeedSource(Protocol):
    """The things of one kind that one tenant has."""

    @property
    def always_whole(self) -> bool:
        """Whether all of them are told when one changed."""
        ...

    def is_due(self, written: bool) -> bool:
        """Whether to look; `written` if anything was committed since the last look."""
        ...

    async def look(self) -> Sequence[FeedItem]:
        """Those that changed since the last look; what the first one gives is not told."""
        ...

    async def whole(self, owner: str | None) -> Sequence[FeedItem]:
        """What a newcomer is told, of what is somebody's or, for None, of all."""
        ...


Sources: TypeAlias = Mapping[str, Callable[[str], FeedSource]]
"""What makes the source of a tenant, by topic."""
Change: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until something happens here."""


class Feed:
    """All who watch in this process, and the looking for them."""

    def __init__(
        self,
        sources: Sources,
        written: Callable[[], Awaitable[Mark]],
        changes: Iterable[Change] = (),
        *,
        pace: float = MIN_POLL_INTERVAL_S,
        look: float = MAX_POLL_INTERVAL_S,
    ) -> None:
        """Begin to look when somebody watches.

        Args:
            sources: What can be watched, by topic.
            written: Another mark whenever something was committed to the store.
            changes: What wakes it.
            pace: Seconds between two looks, at least.
            look: Seconds between two looks, at most.
        """
        self._sources, self._written, self._changes = sources, written, tuple(changes)
        self._pace, self._rest = pace, max(look - pace, 0.0)
        self._desks: dict[str, _TenantFeed] = {}
        self._poked = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._mark: Mark | None = None
        self._seldom = Seldom()

    @property
    def topics(self) -> frozenset[str]:
        """What can be watched."""
        return frozenset(self._sources)

    async def watch(
        self, tenant: str, topics: Sequence[str], owner: str | None
    ) -> AsyncGenerator[tuple[str, FeedUpdate], None]:
        """Everything first, by topic, then what changes, for as long as somebody asks.

        Args:
            tenant: Whose.
            topics: What of it.
            owner: Whose things within the tenant; None is everybody's.
        """
        async with self._joined(tenant, topics, owner) as (desk, watcher):
            while True:
                for topic in topics:
                    async with self._one_at_a_time:
                        told = await watcher.take(topic, desk.sources[topic])
                    if told is not None:
                        yield topic, told
                await watcher.stirred()

    @asynccontextmanager
    async def _joined(
        self, tenant: str, topics: Sequence[str], owner: str | None
    ) -> AsyncGenerator[tuple[_TenantFeed, _Watcher]]:
        watcher = _Watcher(topics, owner)
        async with self._one_at_a_time:
            desk = self._desks.get(tenant) or _TenantFeed()
            fresh = {one: self._sources[one](tenant) for one in topics if one not in desk.sources}
            for source in fresh.values():
                await source.look()
            desk = self._desks.setdefault(tenant, desk)
            desk.sources = {**desk.sources, **fresh}
            desk.watchers.append(watcher)
        self._begin()
        try:
            yield desk, watcher
        finally:
            await self._leave(tenant, desk, watcher)

    def _begin(self) -> None:
        if self._looking is None or self._looking.done():
            self._mark = None
            self._looking = asyncio.create_task(self._look_on(), name="feed")
            self._looking.add_done_callback(self._ended)

    async def _leave(self, tenant: str, desk: _TenantFeed, watcher: _Watcher) -> None:
        desk.watchers.remove(watcher)
        wanted = {topic for one in desk.watchers for topic in one.topics}
        desk.sources = {topic: one for topic, one in desk.sources.items() if topic in wanted}
        if not desk.watchers and self._desks.get(tenant) is desk:
            del self._desks[tenant]
        looking = self._looking
        if not self._desks and looking is not None:
            self._looking = None
            looking.cancel()
            await asyncio.wait([looking])

    def _ended(self, looking: asyncio.Task[None]) -> None:
        """A fault of ours ends the looking: nobody is left to believe that nothing changes."""
        if looking.cancelled() or (problem := looking.exception()) is None:
            return
        for desk in self._desks.values():
            for watcher in desk.watchers:
                watcher.fail(problem)

    async def _look_on(self) -> None:
        async with asyncio.TaskGroup() as group:
            for change in self._changes:
                group.create_task(self._heed(change))
            group.create_task(self._look_often())

    async def _heed(self, change: Change) -> None:
        while True:
            await change()
            self._poked.set()

    async def _look_often(self) -> None:
        while True:
            async with self._one_at_a_time:
                try:
                    await self._look()
                except EvoClawError as problem:
                    if count := self._seldom.count(type(problem).__name__):
                        logger.warning("nobody is told what changes: %s%s", problem, times(count))
            await asyncio.sleep(self._pace)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rest):
                    await self._poked.wait()
            self._poked.clear()

    async def _look(self) -> None:
        """Look at whatever may have changed; what fails is looked at again the next time."""
        mark = await self._written()
        for desk in tuple(self._desks.values()):
            for topic, source in desk.sources.items():
                if source.is_due(mark != self._mark) and (items := await source.look()):
                    for watcher in tuple(desk.watchers):
                        watcher.note(topic, items, source)
        self._mark = mark


class _TenantFeed:
    """What is watched of one tenant."""

    def __init__(self) -> None:
        self.sources: dict[str, FeedSource] = {}
        self.watchers: list[_Watcher] = []


class _Watcher:
    """What one watcher was not told yet."""

    def __init__(self, topics: Sequence[str], owner: str | None) -> None:
        self.topics = frozenset(topics)
        self._owner = owner
        self._wholes = set(topics)
        """The topics of which everything is to be told."""
        self._changed: dict[str, dict[str, Raw]] = {topic: {} for topic in topics}
        """What changed beside, by topic and id: the latest of each."""
        self._last: dict[str, FeedUpdate] = {}
        """What was told last where everything always is."""
        self._stir = asyncio.Event()
        self._problem: BaseException | None = None

    def note(self, topic: str, items: Sequence[FeedItem], source: FeedSource) -> None:
        """Have it told what changed."""
        if topic not in self.topics:
            return
        if source.always_whole:
            self._wholes.add(topic)
        elif topic not in self._wholes:
            waiting = self._changed[topic]
            waiting.update((one.id, one.shown) for one in items if self._sees(one))
            if len(waiting) > MAX_PENDING_ITEMS:
                waiting.clear()
                self._wholes.add(topic)
        if topic in self._wholes or self._changed[topic]:
            self._stir.set()

    def fail(self, problem: BaseException) -> None:
        """Have it told that there is nothing more to tell."""
        self._problem = problem
        self._stir.set()

    async def stirred(self) -> None:
        """Wait until there is something to tell."""
        await self._stir.wait()
        self._stir.clear()
        if self._problem is not None:
            raise self._problem

    async def take(self, topic: str, source: FeedSource) -> FeedUpdate | None:
        """What is to be told of a topic now; None if that is nothing."""
        if topic not in self._wholes:
            changed, self._changed[topic] = self._changed[topic], {}
            return FeedUpdate(tuple(changed.values()), whole=False) if changed else None
        items = await source.whole(self._owner)
        self._wholes.discard(topic)
        told = FeedUpdate(tuple(one.shown for one in items if self._sees(one)), whole=True)
        if source.always_whole:
            if told == self._last.get(topic):
                return None  # what changed is somebody else's
            self._last[topic] = told
        return told

    def _sees(self, item: FeedItem) -> bool:
        return self._owner is None or item.owner in (None, self._owner)
