"""Sees to the runs: begins what is queued, renews leases, looks what other processes did.

All of it is by looking at the store: nothing is lost if a process dies, and nothing is kept in
memory for runs that are queued or wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from evoclaw.core.events import StopReason
from evoclaw.orchestrator.errands import RunSettings
from evoclaw.orchestrator.runs.closing import ABOVE, close_run
from evoclaw.orchestrator.runs.driving import Driving
from evoclaw.orchestrator.runs.holders import is_gone
from evoclaw.orchestrator.seldom import Seldom, times
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import Key
from evoclaw.store.database import StoreError
from evoclaw.store.inbox import Inbox
from evoclaw.store.queue import Claim, RunQueue
from evoclaw.store.sessions import Fenced

logger = logging.getLogger(__name__)
SELDOM = 60.0
"""Seconds between two tidyings."""


class Tending:
    """What goes on beside the runs themselves."""

    def __init__(
        self,
        driving: Driving,
        queue: RunQueue,
        inbox: Inbox,
        talks: Conversations,
        settings: RunSettings,
    ) -> None:
        self._driving, self._queue, self._inbox = driving, queue, inbox
        self._talks, self._settings = talks, settings
        self._poked = asyncio.Event()
        self._reserved: Counter[str] = Counter()
        """Places that are being taken, by tenant."""
        self._idle: frozenset[Claim] = frozenset()
        self._serves = False
        self._seldom = Seldom()

    def poke(self) -> None:
        """Something may be begun."""
        self._poked.set()

    @contextmanager
    def room_for(self, tenant: str) -> Generator[bool]:
        """Whether another run of a tenant may go on; its place is kept while the block lasts."""
        counts = self._counts()
        room = self._serves and counts.total() < self._settings.at_once
        room = room and counts[tenant] < self._settings.per_tenant
        self._reserved[tenant] += room
        try:
            yield room
        finally:
            self._reserved[tenant] -= room

    def _counts(self) -> Counter[str]:
        return Counter(self._driving.counts) + self._reserved

    async def wake(self, tenant: str, run_id: str) -> None:
        """Go on with a run that waits, if there is room; else the next look does."""
        driven = self._driving.live.get((tenant, run_id))
        if driven is not None:
            driven.woken = True
            return
        stored = await self._talks.store.of(tenant).run(run_id)
        if stored is None or stored.stop is not StopReason.WAITING:
            return
        with self.room_for(tenant) as room:
            if room and await self._is_free(tenant, stored.root_run, run_id):
                claim = await self._queue.claim(tenant, run_id)
                if claim is not None:
                    self._driving.take(claim)

    async def _is_free(self, tenant: str, root_run: str, run_id: str) -> bool:
        """A sub-run is its parent's affair until that has ended."""
        if root_run == run_id:
            return True
        root = await self._talks.store.of(tenant).run(root_run)
        return root is None or not root.is_open

    async def end(self, tenant: str, run_id: str) -> None:
        """Have a run end that is to be cancelled, if it goes on here or nowhere."""
        key = tenant, run_id
        if (driven := self._driving.live.get(key)) is not None:
            driven.cancel()
            return
        if (child := self._talks.children.get(key)) is not None:
            child.deadline.cancel()
            return
        stored = await self._talks.store.of(tenant).run(run_id)
        if stored is None or not stored.is_open:
            return
        if await self._is_free(tenant, stored.root_run, run_id):
            claim = await self._queue.claim(tenant, run_id)
            if claim is not None:
                self._driving.take(claim, cancelled=True)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Tend the runs until the block ends."""
        self._serves = True
        await self._trying(self._outlive)
        self.poke()
        tasks = [asyncio.create_task(one) for one in (self._begin(), self._look(), self._renew())]
        try:
            yield
        finally:
            self._serves = False
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _begin(self) -> None:
        """Begin what is queued, whenever there may be room."""
        while True:
            await self._poked.wait()
            self._poked.clear()
            await self._trying(self._begin_some)

    async def _begin_some(self) -> None:
        counts = self._counts()
        room = self._settings.at_once - counts.total()
        if room <= 0:
            return
        for claim in await self._queue.next(counts, room, self._settings.per_tenant):
            self._driving.take(claim)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            await self._trying(self._renew_all)

    async def _renew_all(self) -> None:
        before = list(self._driving.live.values())
        held = await self._queue.renew()
        live = self._driving.live
        lost = [one for one in before if one.claim not in held and live.get(one.key) is one]
        await self._driving.cut_off([one for one in lost if not one.released], release=False)
        # A claim that nobody drives, twice in a row: whoever asked for it was interrupted.
        idle = held - {one.claim for one in (*before, *live.values())}
        if left := idle & self._idle:
            await self._queue.release(list(left))
        self._idle = idle

    async def _look(self) -> None:
        seldom = 0.0
        while True:
            for look in (self._outlive, self._driving.let_go, self._cancels, self._hear):
                await self._trying(look)
            await self._trying(self._answered)
            if seldom <= 0.0:
                seldom = SELDOM
                await self._trying(self._tidy)
            self.poke()
            seldom -= self._settings.look_s
            await asyncio.sleep(self._settings.look_s)

    async def _outlive(self) -> None:
        """What is held by a process that is gone need not be waited for."""
        gone = [holder for holder in await self._queue.holders() if is_gone(holder)]
        if gone:
            await self._queue.outlived(gone)

    async def _cancels(self) -> None:
        for tenant, run_id in await self._inbox.cancels():
            await self.end(tenant, run_id)

    async def _hear(self) -> None:
        for key, count in (await self._inbox.spoken_to(self._queue.holder)).items():
            driven = self._driving.live.get(key)
            steering = None if driven is None else driven.steering
            if driven is not None and steering is not None and steering.known < count:
                await self._driving.hear(driven)

    async def _answered(self) -> None:
        for tenant, run_id in await self._inbox.answered():
            await self.wake(tenant, run_id)

    async def _tidy(self) -> None:
        await self._queue.forget_keys(self._settings.keys_kept_s)
        await self._inbox.tidy()
        for key in await self._inbox.late():
            await self._trying(partial(self._follow, key))
        for key in await self._queue.orphans():
            await self._trying(partial(self._close_orphan, key))

    async def _follow(self, key: Key) -> None:
        tenant, run_id = key
        stored = await self._talks.store.of(tenant).run(run_id)
        if stored is not None:
            await self._driving.follow(tenant, stored, stored.stop)

    async def _close_orphan(self, key: Key) -> None:
        tenant, run_id = key
        talks = self._talks.of(tenant)
        stored = await talks.store.run(run_id)
        if stored is not None and stored.is_open and key not in talks.children:
            await close_run(talks, stored, StopReason.CANCELLED, ABOVE)

    async def _trying(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that may fail while the store cannot be used; it is done again later.

        A fault of ours, or in what is stored of one run, is told; all others are tended still.
        """
        (problem,) = await asyncio.gather(work(), return_exceptions=True)
        match problem:
            case None:
                pass
            case Fenced():
                logger.info("%s", problem)
            case _ if not (count := self._seldom.count(type(problem).__name__)):
                pass  # it was said a moment ago: a disk that is full is not filled by telling so
            case StoreError():
                logger.warning("runs are not tended: %s%s", problem, times(count))
            case _:
                text = "runs are not tended: a fault%s"
                logger.error(text, times(count), exc_info=problem)
