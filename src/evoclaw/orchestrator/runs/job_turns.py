"""Which runs this process drives on PostgreSQL, where others may be at work: it is given jobs.

A job is a session with something to do. It is driven run by run until nothing is left there, so
that the runs of a session need no place of their own in anybody's queue.
"""

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
"""Seconds before the store is asked again that could not be used."""


class JobTurns:
    """Drives what procrastinate gives out; see `Turns`."""

    def __init__(
        self, driving: Driving, queue: JobQueue, settings: RunSettings, database: Database
    ) -> None:
        self._driving, self._queue, self._settings = driving, queue, settings
        self._database = database
        self._open = False

    async def begin(self) -> None:
        """Have the tables of the engine there."""
        try:
            from evoclaw.store.runs.job_engine import found
        except ImportError:
            raise ConfigError(
                "runs on PostgreSQL need procrastinate: pip install 'evoclaw[postgres]'"
            ) from None
        await found(self._database)
        self._open = True

    async def serve(self, trying: Trying) -> None:
        """Do jobs until this is cancelled."""
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
        """Drive a session until it has nothing more to do, or others are to."""
        while True:
            try:
                if not self._open:
                    return await self._queue.give_back(job)
                claim = await self._queue.take(job)
            except StoreError:
                await asyncio.sleep(PAUSE)
                continue
            driven = None if claim is None else self._driving.take(claim)
            if driven is None or not await self._is_done(driven):
                return None

    async def _is_done(self, driven: Driven) -> bool:
        """Wait for a run; whether it went to its end, or to where it waits."""
        try:
            await asyncio.wait([driven.task])
        except asyncio.CancelledError:
            # The engine has given this process up for lost.
            await self._driving.cut_off([driven], release=False)
            raise
        return not driven.cut and driven.key not in self._driving.stalled

    def close(self) -> None:
        """Begin no more; what has not begun is given back."""
        self._open = False

    def poke(self) -> None:
        """The engine hears of everything itself."""

    @contextmanager
    def room_for(self, tenant: str) -> Generator[bool]:
        """No run is begun by whoever asks: its turn is the engine's to say."""
        yield False

    async def wake(self, tenant: str, run_id: str) -> None:
        """Have a run that waits gone on with, here or elsewhere."""
        await self._queue.wake(tenant, run_id)

    async def look(self) -> None:
        """Put back what was left, and offer what was missed."""
        await self._queue.tend(is_gone)
