"""Supervises the workflows of this process: claims, leases and schedules."""

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
from evoclaw.workflows.driver import ApprovedBy, WorkflowDriver
from evoclaw.workflows.schedules import Schedules
from evoclaw.workflows.step_runner import StepRunner

logger = logging.getLogger(__name__)
WorkflowKey = tuple[str, str]
"""A tenant and the id of one of its workflows."""


class WorkflowSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How workflows are driven."""

    max_live: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Maximum number of workflows driven at the same time; those that only wait do not count."""
    lease_s: Annotated[float, Meta(ge=1, le=3_600)] = 30.0
    """Seconds after which another process resumes the workflows of a process that died."""
    poll_s: Annotated[float, Meta(ge=0.05, le=3_600)] = 2.0
    """Seconds between two checks for changes by other processes, or in files."""


class WorkflowSupervisor:
    """Claims and drives the workflows that are due."""

    def __init__(
        self,
        store: WorkflowStore,
        runner: StepRunner,
        schedules: Schedules,
        settings: WorkflowSettings,
        *,
        clock: Callable[[], float],
        approved_by: ApprovedBy,
        notify: Callable[[WorkflowKey], None],
    ) -> None:
        """Choose the parts.

        Args:
            store: Stores workflows.
            runner: Runs their steps.
            schedules: Starts scheduled workflows.
            settings: Limits and intervals.
            clock: Returns Unix seconds.
            approved_by: Who approved a step from now on.
            notify: Called with each workflow that has new events.
        """
        self._store, self._runner, self._schedules = store, runner, schedules
        self._settings, self._clock, self._notify = settings, clock, notify
        self._approved_by = approved_by
        self._owner = secrets.token_hex(8)
        self._drivers: dict[WorkflowKey, WorkflowDriver] = {}
        self._tasks: dict[WorkflowKey, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._renewed = 0.0

    @property
    def live(self) -> int:
        """The number of workflows that are driven now."""
        return len(self._tasks)

    def notify_changed(self, key: WorkflowKey) -> None:
        """Notify the supervisor that a workflow was changed from outside."""
        if driver := self._drivers.get(key):
            driver.notify_changed()
        self._changed.set()

    async def run(self) -> None:
        """Drive workflows until cancelled; then release all, so that others can resume them."""
        try:
            while True:
                self._changed.clear()
                (due,) = await asyncio.gather(self._claim_due(), return_exceptions=True)
                if isinstance(due, BaseException):
                    # A bug is logged with its traceback, a store error without.
                    fault = None if isinstance(due, StoreError) else due
                    logger.warning("workflows suspended, will retry: %s", due, exc_info=fault)
                    due = None
                await self._wait(due)
        finally:
            await self._stop()

    async def _claim_due(self) -> float | None:
        """Claim and start the workflows that are due; returns when to check again."""
        now = asyncio.get_running_loop().time()
        if now - self._renewed >= self._settings.lease_s / 3:
            await self._renew()
            self._renewed = now
        soonest = await self._schedules.start_due()
        room = self._settings.max_live - len(self._tasks)
        for row in await self._store.claim(self._owner, self._settings.lease_s, room):
            if (row.tenant, row.id) in self._tasks:
                continue
            try:
                self._start_driver(row)
            except msgspec.MsgspecError as problem:
                # Written by another version: it must not block the other workflows.
                logger.error("workflow %s cannot be decoded: %s", row.id, problem)
        if len(self._tasks) >= self._settings.max_live:
            return soonest
        times = [time for time in (soonest, await self._store.next_due()) if time is not None]
        return min(times, default=None)

    async def _wait(self, due: float | None) -> None:
        seconds = min(self._settings.poll_s, self._settings.lease_s / 3)
        if due is not None:
            seconds = min(seconds, max(0.0, due - self._clock()))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _start_driver(self, row: StoredWorkflow) -> None:
        key = (row.tenant, row.id)
        driver = WorkflowDriver(
            row,
            self._store.of(row.tenant),
            self._owner,
            self._runner,
            clock=self._clock,
            approved_by=self._approved_by,
            notify=lambda: self._notify(key),
        )
        task = asyncio.create_task(driver.drive(), name=f"workflow {row.id}")
        self._drivers[key], self._tasks[key] = driver, task
        task.add_done_callback(lambda task: self._ended(row, task))

    def _ended(self, row: StoredWorkflow, task: asyncio.Task[None]) -> None:
        key = (row.tenant, row.id)
        del self._drivers[key], self._tasks[key]
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            # A bug is logged with its traceback, an EvoClawError without.
            fault = None if isinstance(problem, EvoClawError) else problem
            logger.error(
                "workflow %s suspended until its lease expires: %s", row.id, problem, exc_info=fault
            )
        if row.parent:
            self.notify_changed((row.tenant, row.parent))
        self._changed.set()

    async def _renew(self) -> None:
        """Renew the leases of the driven workflows; notify drivers of outside changes."""
        # Only the driven ones: a workflow that failed is claimed again when its lease expires.
        keys = list(self._tasks)
        held = await self._store.renew(self._owner, self._settings.lease_s, keys)
        for key in keys:
            driver, task = self._drivers.get(key), self._tasks.get(key)
            if driver is None or task is None:
                continue
            if key not in held:
                task.cancel()  # another process has claimed it
            elif held[key] != driver.version:
                driver.notify_changed()

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(StoreError):
            await self._store.release_all(self._owner)
