"""The scheduler for PostgreSQL, where several orchestrators share the runs as jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.errands import RunSettings
from evoclaw.orchestrator.runs.driving import ActiveRun, RunDriver
from evoclaw.orchestrator.runs.holders import is_process_dead
from evoclaw.orchestrator.runs.turns import Attempt
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.runs.job_queue import JobQueue, SessionJob

STORE_RETRY_DELAY_S = 1.0
"""Seconds before another try while the store is unavailable."""


class QueueScheduler:
    """Drives the sessions that procrastinate hands out as jobs; see `Scheduler`."""

    def __init__(
        self, driver: RunDriver, queue: JobQueue, settings: RunSettings, database: Database
    ) -> None:
        self._driver, self._queue, self._settings = driver, queue, settings
        self._database = database
        self._open = False

    async def open(self) -> None:
        """Create the tables of procrastinate if needed."""
        try:
            from evoclaw.store.runs.job_engine import create_tables
        except ImportError:
            raise ConfigError(
                "runs on PostgreSQL need the package procrastinate; "
                "install it with: pip install 'evoclaw[postgres]'"
            ) from None
        await create_tables(self._database)
        self._open = True

    async def serve(self, attempt: Attempt) -> None:
        """Run jobs until this is cancelled."""
        from evoclaw.store.databases.postgres import PostgresDatabase
        from evoclaw.store.runs.job_engine import JobWorker

        assert isinstance(self._database, PostgresDatabase)
        engine = JobWorker(self._database.server, self._queue, self._drive_session)
        await engine.serve(self._choose_tenants, self._settings.at_once, self._settings.lease_s)

    async def _choose_tenants(self, live: Counter[str]) -> Sequence[Sequence[str]]:
        if not self._open:
            return ()
        return await self._queue.tenants_with_jobs(live, self._settings.per_tenant)

    async def _drive_session(self, job: SessionJob) -> None:
        """Drive a session until it has nothing more to do, or the job is returned."""
        while True:
            try:
                if not self._open:
                    return await self._queue.return_job(job)
                claim = await self._queue.claim_run(job)
            except StoreError:
                await asyncio.sleep(STORE_RETRY_DELAY_S)
                continue
            active = None if claim is None else self._driver.start(claim)
            if active is None or not await self._ran_to_stop(active):
                return None

    async def _ran_to_stop(self, active: ActiveRun) -> bool:
        """Wait for a run; whether it ended or waits, rather than being interrupted."""
        try:
            await asyncio.wait([active.task])
        except asyncio.CancelledError:
            # The worker takes this process for dead.
            await self._driver.interrupt([active], release=False)
            raise
        return not active.interrupted and active.key not in self._driver.suspended

    def close(self) -> None:
        """Start no more runs; jobs that have not started are returned."""
        self._open = False

    def trigger(self) -> None:
        """Do nothing: the worker is notified of new jobs itself."""

    @contextmanager
    def reserve_slot(self, tenant: str) -> Generator[bool]:
        """No slot for the caller: procrastinate decides which process starts a run."""
        yield False

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run, in this process or another one."""
        await self._queue.resume_run(tenant, run_id)

    async def reclaim_abandoned(self) -> None:
        """Return the jobs of dead processes, and create missing jobs."""
        await self._queue.reclaim_abandoned(is_process_dead)
