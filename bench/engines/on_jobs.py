"""Runs as they are driven on PostgreSQL: `JobQueue` and `JobEngine`, which are procrastinate's.

Variant `far`: drivers on other machines, whose death is only seen by their silence. Variant
`skewed`: so, too, and the clock of one of them is ten seconds ahead.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import psycopg
from bench.engines.command import follow
from bench.engines.on_leases import LOOK, TENANT, Driver, cancel, opened
from bench.engines.steps import WATCH, Plan, run_ids

from evoclaw.orchestrator.runs.holders import is_gone, this_process
from evoclaw.store.databases.postgres import PostgresDatabase
from evoclaw.store.runs.job_engine import JobEngine, found
from evoclaw.store.runs.job_queue import Job, JobQueue
from evoclaw.store.runs.queue import Bounds, Entry
from evoclaw.store.sessions.sessions import Session, SessionStore


async def put(plan: Plan) -> None:
    """Ask for every run."""
    async with await opened(plan) as store:
        await found(store.database)
        runs, most = JobQueue(store, "put"), Bounds(10_000, 10_000, 10_000)
        for run, number, _ in run_ids():
            entry = Entry(run, Session(f"s{number}", "agent"), run.endswith("r00"), "", b"{}")
            await runs.put(TENANT, entry, most, claim=False)
    with psycopg.connect(plan.url, autocommit=True) as connection:
        connection.execute(WATCH.format("evoclaw.runs"))


class JobDriver(Driver):
    """The same steps, for sessions that the engine gives out."""

    def __init__(self, plan: Plan, store: SessionStore) -> None:
        super().__init__(plan, store)
        name = plan.name if plan.variant else this_process()
        ahead = 10.0 if (plan.variant, plan.name) == ("skewed", "b") else 0.0
        self._jobs = JobQueue(store, name, lease_s=plan.stall, clock=lambda: time.time() + ahead)
        self._queue = self._jobs

    async def serve(self) -> None:
        """Drive runs until the process ends."""
        database = self._store.database
        assert isinstance(database, PostgresDatabase)
        engine = JobEngine(database.server, self._jobs, self._do)
        await asyncio.gather(
            self._often(self._look, LOOK), self._often(self._renew, self._plan.stall / 3),
            engine.serve(self._choose, self._plan.at_once, self._plan.stall),
        )  # fmt: skip

    async def _choose(self, live: Counter[str]) -> Sequence[Sequence[str]]:
        return await self._jobs.waiting(live, self._plan.at_once)

    async def _do(self, job: Job) -> None:
        while (claim := await self._jobs.take(job)) is not None:
            self._take(claim, self._drive(claim))
            await asyncio.wait([self._live[claim.run_id]])

    async def _look(self) -> None:
        await self._jobs.tend(is_gone)
        for tenant, run in await self._inbox.cancels():
            if run in self._live:
                self._live[run].cancel()
            elif claim := await self._queue.claim(tenant, run):
                self._take(claim, self._end(claim))


async def drive(plan: Plan) -> None:
    """Drive runs until the process ends."""
    async with await opened(plan) as store:
        await JobDriver(plan, store).serve()


if __name__ == "__main__":
    follow(put, drive, cancel)
