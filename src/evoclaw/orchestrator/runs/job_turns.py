"""The scheduler for PostgreSQL, where several orchestrators share the runs as jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.errands import RunSettings
from evoclaw.orchestrator.runs.driving import Driven, Driving
from evoclaw.orchestrator.runs.holders import is_gone
from evoclaw.orchestrator.runs.turns import Trying
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.runs.job_queue import Job, JobQueue

PAUSE = 1.0
"""Seconds before another try while the store is unavailable."""


class JobTurns:
    """Drives the sessions that procrastinate hands out as jobs; see `Scheduler`."""

    def __init__(
        self, driving: Driving, queue: JobQueue, settings: RunSettings, database: Database
    ) -> None:
        self._driving, self._queue, self._settings = driving, queue, settings
        self._database = database
        self._open = False

    async def begin(self) -> None:
        """Create the tables of procrastinate if needed."""
        try:
            from evoclaw.store.runs.job_engine import found
        except ImportError:
            raise ConfigError(
                "runs on PostgreSQL need the package procrastinate; "
                "install it with: pip install 'evoclaw[postgres]'"
            ) from None
        await found(self._database)
        self._open = True

    async def serve(self, trying: Trying) -> None:
        """Run jobs until this is cancelled."""
        from evoclaw.store.databases.postgres import PostgresDatabase
        from evoclaw.store.runs.job_engine import JobEngine

        assert isinstance(self._database, PostgresDatabase)
        engine = JobEngine(self._database.server, self._queue, self._do)
        await engine.serve(self._choose, self._settings.at_once, self._settings.lease_s)

    async def _choose(self, live: Counter[str]) -> Sequence[Sequence[str]]:
        if not self._open:
            return ()
        return await self._queue.waiting(live, self._settings.per_tenant)

    async def _do(self, job: Job) -> None:
        """Drive a session until it has nothing more to do, or the job is returned."""
        while True:
            try:
                if not self._open:
                    return await self._queue.give_back(job)
                claim = await self._queue.take(job)
            except StoreError:
                await asyncio.sleep(PAUSE)
                continue
            active = None if claim is None else self._driving.take(claim)
            if active is None or not await self._is_done(active):
                return None

    async def _is_done(self, active: Driven) -> bool:
        """Wait for a run; whether it ended or waits, rather than being interrupted."""
        try:
            await asyncio.wait([active.task])
        except asyncio.CancelledError:
            # The worker takes this process for dead.
            await self._driving.cut_off([active], release=False)
            raise
        return not active.cut and active.key not in self._driving.stalled

    def close(self) -> None:
        """Start no more runs; jobs that have not started are returned."""
        self._open = False

    def poke(self) -> None:
        """Do nothing: the worker is notified of new jobs itself."""

    @contextmanager
    def room_for(self, tenant: str) -> Generator[bool]:
        """No slot for the caller: procrastinate decides which process starts a run."""
        yield False

    async def wake(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run, in this process or another one."""
        await self._queue.wake(tenant, run_id)

    async def look(self) -> None:
        """Return the jobs of dead processes, and create missing jobs."""
        await self._queue.tend(is_gone)
