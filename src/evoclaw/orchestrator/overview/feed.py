"""A feed of changes: polled once for all watchers, each of which gets the items that it may see.

One feed serves a process. It polls when something happened in this process, and periodically for
changes of other processes; without watchers it does nothing. A changed item is encoded once for
all watchers. A slow watcher gets the latest state of each item: never more than there are items.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeAlias

from msgspec import Raw, Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.log_throttle import LogThrottle, repeat_suffix
from evoclaw.store.databases.change_detection import CommitMark

logger = logging.getLogger(__name__)
MIN_POLL_INTERVAL_S = 0.5
"""The shortest interval, however many changes there are."""
MAX_POLL_INTERVAL_S = 0.75
"""The longest interval: changes of other processes are seen by then."""
MAX_PENDING_ITEMS = 2_000
"""Changed items that are kept for one watcher; one that is further behind gets all items."""


class FeedItem(Struct, frozen=True):
    """One item, encoded as it is shown."""

    id: str
    owner: str | None
    """The user who may see it; None is every user of the tenant."""
    shown: Raw


class FeedUpdate(Struct, frozen=True):
    """What a watcher gets in one message."""

    items: tuple[Raw, ...]
    whole: bool
    """Whether these are all items; otherwise those that changed."""


class FeedSource(Protocol):
    """The items of one topic and one tenant."""

    @property
    def always_whole(self) -> bool:
        """Whether watchers get all items when one changed."""
        ...

    def is_due(self, written: bool) -> bool:
        """Whether to poll; `written` if anything was committed since the last poll."""
        ...

    async def poll(self) -> Sequence[FeedItem]:
        """The items that changed since the last poll; those of the first poll are not sent."""
        ...

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        """What a new watcher gets: the items of a user, or of all users for None."""
        ...


Sources: TypeAlias = Mapping[str, Callable[[str], FeedSource]]
"""By topic, what makes the source of a tenant."""
Change: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until something happens in this process."""


class Feed:
    """Polls for all watchers in this process."""

    def __init__(
        self,
        sources: Sources,
        written: Callable[[], Awaitable[CommitMark]],
        changes: Iterable[Change] = (),
        *,
        min_interval_s: float = MIN_POLL_INTERVAL_S,
        max_interval_s: float = MAX_POLL_INTERVAL_S,
    ) -> None:
        """Poll once there is a watcher.

        Args:
            sources: By topic.
            written: Gives another mark whenever something was committed to the store.
            changes: Each triggers a poll when it returns.
            min_interval_s: Between two polls, at least.
            max_interval_s: Between two polls, at most.
        """
        self._sources, self._written, self._changes = sources, written, tuple(changes)
        self._min_interval_s = min_interval_s
        self._wait_s = max(max_interval_s - min_interval_s, 0.0)
        self._tenants: dict[str, _TenantFeed] = {}
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        self._mark: CommitMark | None = None
        self._seldom = LogThrottle()

    @property
    def topics(self) -> frozenset[str]:
        """The topics that can be watched."""
        return frozenset(self._sources)

    async def watch(
        self, tenant: str, topics: Sequence[str], owner: str | None
    ) -> AsyncGenerator[tuple[str, FeedUpdate], None]:
        """All items first, by topic, then those that change.

        Args:
            tenant: Whose items.
            topics: Which of them.
            owner: Only items of this user; None is all of the tenant.
        """
        async with self._joined(tenant, topics, owner) as (tenant_feed, watcher):
            while True:
                for topic in topics:
                    async with self._lock:
                        update = await watcher.take(topic, tenant_feed.sources[topic])
                    if update is not None:
                        yield topic, update
                await watcher.wait()

    @asynccontextmanager
    async def _joined(
        self, tenant: str, topics: Sequence[str], owner: str | None
    ) -> AsyncGenerator[tuple[_TenantFeed, _Watcher]]:
        watcher = _Watcher(topics, owner)
        async with self._lock:
            feed = self._tenants.get(tenant) or _TenantFeed()
            new = {name: self._sources[name](tenant) for name in topics if name not in feed.sources}
            for source in new.values():
                await source.poll()
            feed = self._tenants.setdefault(tenant, feed)
            feed.sources = {**feed.sources, **new}
            feed.watchers.append(watcher)
        self._start()
        try:
            yield feed, watcher
        finally:
            await self._leave(tenant, feed, watcher)

    def _start(self) -> None:
        if self._polling is None or self._polling.done():
            self._mark = None
            self._polling = asyncio.create_task(self._run(), name="feed")
            self._polling.add_done_callback(self._ended)

    async def _leave(self, tenant: str, feed: _TenantFeed, watcher: _Watcher) -> None:
        feed.watchers.remove(watcher)
        watched_topics = {topic for watcher in feed.watchers for topic in watcher.topics}
        feed.sources = {
            name: source for name, source in feed.sources.items() if name in watched_topics
        }
        if not feed.watchers and self._tenants.get(tenant) is feed:
            del self._tenants[tenant]
        polling = self._polling
        if not self._tenants and polling is not None:
            self._polling = None
            polling.cancel()
            await asyncio.wait([polling])

    def _ended(self, polling: asyncio.Task[None]) -> None:
        """Fail all watchers after a bug ended the polling: they would get no changes any more."""
        if polling.cancelled() or (problem := polling.exception()) is None:
            return
        for feed in self._tenants.values():
            for watcher in feed.watchers:
                watcher.fail(problem)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for change in self._changes:
                group.create_task(self._wake_on(change))
            group.create_task(self._poll_repeatedly())

    async def _wake_on(self, change: Change) -> None:
        while True:
            await change()
            self._changed.set()

    async def _poll_repeatedly(self) -> None:
        while True:
            async with self._lock:
                try:
                    await self._poll()
                except EvoClawError as problem:
                    if count := self._seldom.count(type(problem).__name__):
                        logger.warning(
                            "polling for changes failed: %s%s", problem, repeat_suffix(count)
                        )
            await asyncio.sleep(self._min_interval_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await self._changed.wait()
            self._changed.clear()

    async def _poll(self) -> None:
        """Poll all sources that are due; after a failure they are polled again the next time."""
        mark = await self._written()
        for feed in tuple(self._tenants.values()):
            for topic, source in feed.sources.items():
                if source.is_due(mark != self._mark) and (items := await source.poll()):
                    for watcher in tuple(feed.watchers):
                        watcher.note(topic, items, source)
        self._mark = mark


class _TenantFeed:
    """The sources and watchers of one tenant."""

    def __init__(self) -> None:
        self.sources: dict[str, FeedSource] = {}
        self.watchers: list[_Watcher] = []


class _Watcher:
    """What one watcher has not received yet."""

    def __init__(self, topics: Sequence[str], owner: str | None) -> None:
        self.topics = frozenset(topics)
        self._owner = owner
        self._whole_topics = set(topics)
        """The topics of which all items are to be sent."""
        self._changed: dict[str, dict[str, Raw]] = {topic: {} for topic in topics}
        """Changed items of other topics, by topic and id: the latest of each."""
        self._last: dict[str, FeedUpdate] = {}
        """The last update of topics of which all items are always sent."""
        self._ready = asyncio.Event()
        self._problem: BaseException | None = None

    def note(self, topic: str, items: Sequence[FeedItem], source: FeedSource) -> None:
        """Take in changed items."""
        if topic not in self.topics:
            return
        if source.always_whole:
            self._whole_topics.add(topic)
        elif topic not in self._whole_topics:
            waiting = self._changed[topic]
            waiting.update((item.id, item.shown) for item in items if self._sees(item))
            if len(waiting) > MAX_PENDING_ITEMS:
                waiting.clear()
                self._whole_topics.add(topic)
        if topic in self._whole_topics or self._changed[topic]:
            self._ready.set()

    def fail(self, problem: BaseException) -> None:
        """Raise this in the watcher."""
        self._problem = problem
        self._ready.set()

    async def wait(self) -> None:
        """Wait until there is something to send."""
        await self._ready.wait()
        self._ready.clear()
        if self._problem is not None:
            raise self._problem

    async def take(self, topic: str, source: FeedSource) -> FeedUpdate | None:
        """The update of a topic now; None if there is nothing to send."""
        if topic not in self._whole_topics:
            changed, self._changed[topic] = self._changed[topic], {}
            return FeedUpdate(tuple(changed.values()), whole=False) if changed else None
        items = await source.all_items(self._owner)
        self._whole_topics.discard(topic)
        update = FeedUpdate(tuple(item.shown for item in items if self._sees(item)), whole=True)
        if source.always_whole:
            if update == self._last.get(topic):
                return None  # the change is another user's
            self._last[topic] = update
        return update

    def _sees(self, item: FeedItem) -> bool:
        return self._owner is None or item.owner in (None, self._owner)
