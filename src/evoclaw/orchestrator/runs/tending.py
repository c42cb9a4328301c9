"""Run supervisor: runs the scheduler, renews claims, and applies control requests from the store.

It works by polling the store: nothing is lost if a process dies, and queued or waiting runs take no
memory.
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
"""Seconds between two cleanups of the store."""


class Tending:
    """Background work for the runs of this process."""

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
        """Resume a waiting run as soon as a slot is free."""
        active = self._driving.live.get((tenant, run_id))
        if active is not None:
            active.woken = True
            return
        stored = await self._talks.store.of(tenant).run(run_id)
        if stored is None or stored.stop is not StopReason.WAITING:
            return
        if stored.holder != NOBODY and await self._is_free(tenant, stored.root_run, run_id):
            await self._turns.wake(tenant, run_id)

    async def _is_free(self, tenant: str, root_run: str, run_id: str) -> bool:
        """Whether a run may be driven by itself: a sub-run only after its root run has ended."""
        if root_run == run_id:
            return True
        root = await self._talks.store.of(tenant).run(root_run)
        return root is None or not root.is_open

    async def end(self, tenant: str, run_id: str) -> None:
        """Cancel a run that this process drives, or that no process drives."""
        key = tenant, run_id
        if (active := self._driving.live.get(key)) is not None:
            active.cancel()
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
        """Supervise the runs until the block ends."""
        await self._turns.begin()
        await self._trying(self._turns.look)
        requests = self._wishes.serve(self._trying)
        scheduling = self._turns.serve(self._trying)
        loops = (scheduling, self._put_back(), self._look(), self._renew(), requests)
        tasks = [asyncio.create_task(loop) for loop in loops]
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
        lost = [run for run in before if run.claim not in held and live.get(run.key) is run]
        await self._driving.cut_off([run for run in lost if not run.released], release=False)
        # A claim without a driver, twice in a row: the request that claimed it was interrupted.
        undriven = held - {run.claim for run in (*before, *live.values())}
        if abandoned := undriven & self._idle:
            await self._queue.release(list(abandoned))
        self._idle = undriven

    async def _put_back(self) -> None:
        """Reclaim runs of dead processes; users notice how soon."""
        while True:
            await self._trying(self._turns.look)
            self._turns.poke()
            await asyncio.sleep(self._settings.look_s / 2)

    async def _look(self) -> None:
        until_cleanup = 0.0
        while True:
            for step in (self._driving.let_go, self._cancels, self._hear, self._answered):
                await self._trying(step)
            if until_cleanup <= 0.0:
                until_cleanup = SELDOM
                await self._trying(self._tidy)
            until_cleanup -= self._settings.look_s
            await asyncio.sleep(self._settings.look_s)

    async def _cancels(self) -> None:
        for tenant, run_id in await self._inbox.cancels():
            await self.end(tenant, run_id)

    async def _hear(self) -> None:
        for key, count in (await self._inbox.spoken_to(self._queue.holder)).items():
            active = self._driving.live.get(key)
            steering = None if active is None else active.steering
            if active is not None and steering is not None and steering.known < count:
                await self._driving.hear(active)

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
        conversations = self._talks.of(tenant)
        stored = await conversations.store.run(run_id)
        if stored is not None and stored.is_open and key not in conversations.children:
            await close_run(conversations, stored, StopReason.CANCELLED, ABOVE)

    async def _trying(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work that may fail while the store is unavailable; it is repeated later.

        An internal error, or a fault in what is stored of one run, is logged; the other runs are
        still supervised.
        """
        (problem,) = await asyncio.gather(work(), return_exceptions=True)
        match problem:
            case None:
                pass
            case Fenced():
                logger.info("%s", problem)
            case _ if not (count := self._seldom.count(type(problem).__name__)):
                pass  # logged a moment ago: a full disk is not to be filled by its own error
            case StoreError():
                logger.warning("run supervision failed: %s%s", problem, times(count))
            case _:
                text = "run supervision failed with an internal error%s"
                logger.error(text, times(count), exc_info=problem)
