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
from evoclaw.orchestrator.log_throttle import LogThrottle, repeat_suffix
from evoclaw.orchestrator.runs.closing import PARENT_ENDED_REASON, close_run
from evoclaw.orchestrator.runs.driver import (
    ControlRequests,
    RunDriver,
)
from evoclaw.orchestrator.runs.requests import RunSettings
from evoclaw.orchestrator.runs.scheduler import Scheduler
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.run_ids import TenantKey
from evoclaw.store.databases.database import StoreError
from evoclaw.store.runs.claims import RESUMABLE
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import Claim, RunQueue
from evoclaw.store.sessions.sessions import Fenced

logger = logging.getLogger(__name__)
CLEANUP_INTERVAL_S = 60.0
"""Seconds between two cleanups of the store."""


class RunSupervisor:
    """Background work for the runs of this process."""

    def __init__(
        self,
        driver: RunDriver,
        queue: RunQueue,
        inbox: Inbox,
        conversations: Conversations,
        scheduler: Scheduler,
        settings: RunSettings,
    ) -> None:
        self._driver, self._queue, self._inbox = driver, queue, inbox
        self._conversations, self._scheduler, self._settings = conversations, scheduler, settings
        self._control_requests = ControlRequests(
            driver, conversations, inbox, cancel=self.cancel, resume=self.resume
        )
        self._undriven: frozenset[Claim] = frozenset()
        self._log_throttle = LogThrottle()

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run as soon as a slot is free."""
        active = self._driver.active.get((tenant, run_id))
        if active is not None:
            active.resume_requested = True
            return
        stored = await self._conversations.store.of(tenant).run(run_id)
        if stored is None or stored.stop is not StopReason.WAITING:
            return
        if stored.holder != RESUMABLE and await self._may_drive(tenant, stored.root_run, run_id):
            await self._scheduler.resume(tenant, run_id)

    async def _may_drive(self, tenant: str, root_run: str, run_id: str) -> bool:
        """Whether a run may be driven by itself: a sub-run only after its root run has ended."""
        if root_run == run_id:
            return True
        root = await self._conversations.store.of(tenant).run(root_run)
        return root is None or not root.is_open

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Cancel a run that this process drives, or that no process drives."""
        key = tenant, run_id
        if (active := self._driver.active.get(key)) is not None:
            active.cancel()
            return
        if (child := self._conversations.subruns.get(key)) is not None:
            child.deadline.cancel()
            return
        stored = await self._conversations.store.of(tenant).run(run_id)
        if stored is None or not stored.is_open:
            return
        if await self._may_drive(tenant, stored.root_run, run_id):
            claim = await self._queue.claim(tenant, run_id)
            if claim is not None:
                self._driver.start(claim, cancelled=True)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Supervise the runs until the block ends."""
        await self._scheduler.open()
        await self._attempt(self._scheduler.reclaim_abandoned)
        requests = self._control_requests.serve(self._attempt)
        scheduling = self._scheduler.serve(self._attempt)
        loops = (scheduling, self._reclaim_loop(), self._poll_loop(), self._renew_loop(), requests)
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            with self._conversations.store.database.notices.subscribe(
                self._control_requests.on_notice, own=False
            ):
                yield
        finally:
            self._scheduler.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            await self._attempt(self._renew_claims)

    async def _renew_claims(self) -> None:
        before = list(self._driver.active.values())
        renewed = await self._queue.renew()
        live = self._driver.active
        lost = [run for run in before if run.claim not in renewed and live.get(run.key) is run]
        await self._driver.interrupt([run for run in lost if not run.released], release=False)
        # A claim without a driver, twice in a row: the request that claimed it was interrupted.
        undriven = renewed - {run.claim for run in (*before, *live.values())}
        if abandoned := undriven & self._undriven:
            await self._queue.release(list(abandoned))
        self._undriven = undriven

    async def _reclaim_loop(self) -> None:
        """Reclaim runs of dead processes; users notice how soon."""
        while True:
            await self._attempt(self._scheduler.reclaim_abandoned)
            self._scheduler.trigger()
            await asyncio.sleep(self._settings.look_s / 2)

    async def _poll_loop(self) -> None:
        until_cleanup = 0.0
        while True:
            for step in (
                self._driver.release_suspended,
                self._apply_cancellations,
                self._deliver_steering,
                self._resume_answered,
            ):
                await self._attempt(step)
            if until_cleanup <= 0.0:
                until_cleanup = CLEANUP_INTERVAL_S
                await self._attempt(self._clean_up)
            until_cleanup -= self._settings.look_s
            await asyncio.sleep(self._settings.look_s)

    async def _apply_cancellations(self) -> None:
        for tenant, run_id in await self._inbox.cancelled_runs():
            await self.cancel(tenant, run_id)

    async def _deliver_steering(self) -> None:
        for key, count in (await self._inbox.message_counts(self._queue.holder)).items():
            active = self._driver.active.get(key)
            steering = None if active is None else active.steering
            if active is not None and steering is not None and steering.received < count:
                await self._driver.deliver_steering(active)

    async def _resume_answered(self) -> None:
        for key in await self._inbox.answered_runs():
            # An active run continues after this answer already: its calls are listed as pending
            # until it stops, and it must not be resumed once more when it waits for the next one.
            if key not in self._driver.active:
                await self.resume(*key)

    async def _clean_up(self) -> None:
        await self._queue.delete_old_keys(self._settings.keys_kept_s)
        await self._inbox.delete_old_cancels()
        for key in await self._inbox.ended_with_messages():
            await self._attempt(partial(self._queue_follow_up, key))
        for key in await self._queue.orphans():
            await self._attempt(partial(self._close_orphan, key))

    async def _queue_follow_up(self, key: TenantKey) -> None:
        tenant, run_id = key
        stored = await self._conversations.store.of(tenant).run(run_id)
        if stored is not None:
            await self._driver.queue_follow_up(tenant, stored, stored.stop)

    async def _close_orphan(self, key: TenantKey) -> None:
        tenant, run_id = key
        conversations = self._conversations.of(tenant)
        stored = await conversations.store.run(run_id)
        if stored is not None and stored.is_open and key not in conversations.subruns:
            await close_run(conversations, stored, StopReason.CANCELLED, PARENT_ENDED_REASON)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
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
            case _ if not (count := self._log_throttle.count(type(problem).__name__)):
                pass  # logged a moment ago: a full disk is not to be filled by its own error
            case StoreError():
                logger.warning("run supervision failed: %s%s", problem, repeat_suffix(count))
            case _:
                text = "run supervision failed with an internal error%s"
                logger.error(text, repeat_suffix(count), exc_info=problem)
