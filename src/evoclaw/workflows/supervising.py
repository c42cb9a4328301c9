"""Driving every workflow that can go on: claims, leases, and those that start by themselves."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.store.databases.database import StoreError
from evoclaw.store.workflows.workflows import StoredWorkflow, WorkflowStore
from evoclaw.workflows.driving import Driver
from evoclaw.workflows.performing import Performer
from evoclaw.workflows.schedules import Schedules

logger = logging.getLogger(__name__)
Key = tuple[str, str]
"""A tenant and a workflow of it."""


class WorkflowSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How workflows are driven."""

    max_live: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """How many do something at the same time; those that only wait do not count."""
    lease_s: Annotated[float, Meta(ge=1, le=3_600)] = 30.0
    """Seconds after which what a process held that is gone is taken up by another."""
    poll_s: Annotated[float, Meta(ge=0.05, le=3_600)] = 2.0
    """Seconds between two looks for what other processes, or files, have changed."""


class Supervisor:
    """Drives what is due, as long as it runs."""

    def __init__(
        self,
        store: WorkflowStore,
        performer: Performer,
        schedules: Schedules,
        settings: WorkflowSettings,
        *,
        clock: Callable[[], float],
        tell: Callable[[Key], None],
    ) -> None:
        """Choose the parts.

        Args:
            store: Where workflows are kept.
            performer: Does their steps.
            schedules: Starts those that start by themselves.
            settings: How many, and how often.
            clock: The time.
            tell: Told of each workflow in which something happened.
        """
        self._store, self._performer, self._schedules = store, performer, schedules
        self._settings, self._clock, self._tell = settings, clock, tell
        self._holder = secrets.token_hex(8)
        self._drivers: dict[Key, Driver] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._renewed = 0.0

    @property
    def live(self) -> int:
        """How many are driven now."""
        return len(self._tasks)

    def poke(self, key: Key) -> None:
        """Something happened to a workflow from outside: look at once."""
        if driver := self._drivers.get(key):
            driver.poke()
        self._news.set()

    async def run(self) -> None:
        """Drive until cancelled; others can go on with all of it at once then."""
        try:
            while True:
                self._news.clear()
                (due,) = await asyncio.gather(self._look(), return_exceptions=True)
                if isinstance(due, BaseException):
                    # A fault of ours is told with its place; a full disk has none.
                    fault = None if isinstance(due, StoreError) else due
                    logger.warning("workflows pause: %s", due, exc_info=fault)
                    due = None
                await self._pause(due)
        finally:
            await self._stop()

    async def _look(self) -> float | None:
        """Take up what can go on; when to look again."""
        now = asyncio.get_running_loop().time()
        if now - self._renewed >= self._settings.lease_s / 3:
            await self._renew()
            self._renewed = now
        soonest = await self._schedules.start_due()
        room = self._settings.max_live - len(self._tasks)
        for row in await self._store.claim(self._holder, self._settings.lease_s, room):
            if (row.tenant, row.id) in self._tasks:
                continue
            try:
                self._take_up(row)
            except msgspec.MsgspecError as problem:
                # Of a version that we do not read: the others must not wait for it.
                logger.error("workflow %s cannot be read: %s", row.id, problem)
        if len(self._tasks) >= self._settings.max_live:
            return soonest
        times = [time for time in (soonest, await self._store.next_due()) if time is not None]
        return min(times, default=None)

    async def _pause(self, due: float | None) -> None:
        seconds = min(self._settings.poll_s, self._settings.lease_s / 3)
        if due is not None:
            seconds = min(seconds, max(0.0, due - self._clock()))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _take_up(self, row: StoredWorkflow) -> None:
        key = (row.tenant, row.id)
        driver = Driver(
            row,
            self._store.of(row.tenant),
            self._holder,
            self._performer,
            clock=self._clock,
            tell=lambda: self._tell(key),
        )
        task = asyncio.create_task(driver.drive(), name=f"workflow {row.id}")
        self._drivers[key], self._tasks[key] = driver, task
        task.add_done_callback(lambda task: self._ended(row, task))

    def _ended(self, row: StoredWorkflow, task: asyncio.Task[None]) -> None:
        key = (row.tenant, row.id)
        del self._drivers[key], self._tasks[key]
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            # A fault of ours is told with its place; a full disk has none.
            fault = None if isinstance(problem, EvoClawError) else problem
            logger.error("workflow %s pauses: %s", row.id, problem, exc_info=fault)
        if row.parent:
            self.poke((row.tenant, row.parent))
        self._news.set()

    async def _renew(self) -> None:
        """Hold on to what is driven; those who do not know the latest are told."""
        # Only those: what could not be driven is taken up again when its lease is over.
        keys = list(self._tasks)
        held = await self._store.renew(self._holder, self._settings.lease_s, keys)
        for key in keys:
            driver, task = self._drivers.get(key), self._tasks.get(key)
            if driver is None or task is None:
                continue
            if key not in held:
                task.cancel()  # Another process goes on with it.
            elif held[key] != driver.seen:
                driver.poke()

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(StoreError):
            await self._store.let_go(self._holder)
