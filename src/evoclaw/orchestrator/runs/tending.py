"""Sees to the runs: has them begun in turn, looks what other processes did and want.

All of it is by looking at the store: nothing is lost if a process dies, and nothing is kept in
memory for runs that are queued or wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from evoclaw.core.events import StopReason
from evoclaw.orchestrator.errands import RunSettings
from evoclaw.orchestrator.runs.closing import ABOVE, close_run
from evoclaw.orchestrator.runs.driving import Driving
from evoclaw.orchestrator.runs.turns import Turns
from evoclaw.orchestrator.runs.wishes import Wishes
from evoclaw.orchestrator.seldom import Seldom, times
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import Key
from evoclaw.store.databases.database import StoreError
from evoclaw.store.runs.claims import NOBODY
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import Claim, RunQueue
from evoclaw.store.sessions.sessions import Fenced

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
        turns: Turns,
        settings: RunSettings,
    ) -> None:
        self._driving, self._queue, self._inbox = driving, queue, inbox
        self._talks, self._turns, self._settings = talks, turns, settings
        self._wishes = Wishes(driving, talks, inbox, end=self.end, wake=self.wake)
        self._idle: frozenset[Claim] = frozenset()
        self._seldom = Seldom()

    async def wake(self, tenant: str, run_id: str) -> None:
        """Go on with a run that waits, as soon as there is room."""
        driven = self._driving.live.get((tenant, run_id))
        if driven is not None:
            driven.woken = True
            return
        stored = await self._talks.store.of(tenant).run(run_id)
        if stored is None or stored.stop is not StopReason.WAITING:
            return
        if stored.holder != NOBODY and await self._is_free(tenant, stored.root_run, run_id):
            await self._turns.wake(tenant, run_id)

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
        await self._turns.begin()
        await self._trying(self._turns.look)
        wishes = self._wishes.serve(self._trying)
        turns = self._turns.serve(self._trying)
        loops = (turns, self._put_back(), self._look(), self._renew(), wishes)
        tasks = [asyncio.create_task(one) for one in loops]
        try:
            with self._talks.store.database.notices.heard_by(self._wishes.told, own=False):
                yield
        finally:
            self._turns.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

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

    async def _put_back(self) -> None:
        """Have gone on with what others left; how soon that is seen, people notice."""
        while True:
            await self._trying(self._turns.look)
            self._turns.poke()
            await asyncio.sleep(self._settings.look_s / 2)

    async def _look(self) -> None:
        seldom = 0.0
        while True:
            for look in (self._driving.let_go, self._cancels, self._hear, self._answered):
                await self._trying(look)
            if seldom <= 0.0:
                seldom = SELDOM
                await self._trying(self._tidy)
            seldom -= self._settings.look_s
            await asyncio.sleep(self._settings.look_s)

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
