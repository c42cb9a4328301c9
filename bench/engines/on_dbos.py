"""Runs as workflows of DBOS: the session is a partition of the queue, each step is a step.

Not in the package, so ours: heartbeats of the drivers, who is dead, and having its runs recovered.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import psycopg_pool
from bench.engines.command import follow
from bench.engines.steps import Plan, Steps, note, run_ids
from dbos import DBOS, DBOSClient, error

BEATS = "CREATE TABLE IF NOT EXISTS bench.beats (driver TEXT PRIMARY KEY, at TIMESTAMPTZ)"
BEAT = """INSERT INTO bench.beats VALUES (%s, clock_timestamp())
ON CONFLICT (driver) DO UPDATE SET at = excluded.at"""
DEAD = "SELECT driver FROM bench.beats WHERE at < clock_timestamp() - make_interval(secs => %s)"
# A driver that slept since it was given a run must not take it from who has it now.
OWNED = """AND EXISTS (SELECT 1 FROM dbos.workflow_status w
    WHERE w.workflow_uuid = id AND w.status = 'PENDING' AND w.executor_id = %s)"""


def launch(plan: Plan) -> None:
    """Start DBOS in this process."""
    DBOS(
        config={
            "name": "engines",
            "system_database_url": plan.url,
            "executor_id": plan.name,
            "application_version": "1",
            "log_level": "ERROR",
        }
    )


def register(plan: Plan) -> None:
    """The queue: a session's runs one at a time, in order."""
    DBOS.register_queue(
        "runs",
        partition_concurrency=1,
        worker_concurrency=plan.at_once,
        polling_interval_sec=0.1,
    )


async def put(plan: Plan) -> None:
    """Ask for every run."""
    launch(plan)
    await asyncio.to_thread(DBOS.launch)
    await asyncio.to_thread(register, plan)
    await asyncio.to_thread(DBOS.destroy)
    with psycopg.connect(plan.url, autocommit=True) as connection:
        connection.execute(BEATS)
    client = DBOSClient(system_database_url=plan.url)
    for run, session, _ in run_ids():
        await client.enqueue_async(
            {
                "queue_name": "runs",
                "workflow_name": "drive",
                "workflow_id": run,
                "queue_partition_key": f"s{session}",
                "app_version": "1",
                "application_name": "engines",
            },
            run,
        )


async def cancel(plan: Plan, run: str) -> None:
    """Have a run end."""
    client = DBOSClient(system_database_url=plan.url)
    note(plan.url, "asked", run)
    await client.cancel_workflow_async(run)


async def drive(plan: Plan) -> None:
    """Drive runs until the process ends."""
    pools: list[Any] = []

    async def opened() -> Steps:
        if not pools:
            pool = psycopg_pool.AsyncConnectionPool(
                plan.url, min_size=1, max_size=4, open=False, check=CHECK
            )
            pools.append(pool)
            await pool.open()
        return Steps(plan, pools[0])

    launch(plan)

    @DBOS.step(name="append")
    async def append(run: str, step: int, epoch: int) -> None:
        await (await opened()).append(run, step, epoch)
        await asyncio.sleep(plan.pause)

    @DBOS.workflow(name="drive", max_recovery_attempts=1_000)
    async def workflow(run: str) -> None:
        steps = await opened()
        epoch = await steps.claim(run, None, OWNED, plan.name)
        try:
            for step in range(5):
                await append(run, step, epoch)
        except (error.DBOSWorkflowCancelledError, error.DBOSWorkflowConflictIDError):
            if await asyncio.to_thread(is_cancelled, plan, run):
                await steps.aborted(run, epoch)
            raise

    await asyncio.to_thread(DBOS.launch)
    await asyncio.to_thread(register, plan)
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            await asyncio.to_thread(tend, plan)
        await asyncio.sleep(1)


def is_cancelled(plan: Plan, run: str) -> bool:
    """Whether it was, or somebody else has it."""
    find = "SELECT status FROM dbos.workflow_status WHERE workflow_uuid = %s"
    with psycopg.connect(plan.url) as connection:
        return connection.execute(find, (run,)).fetchone() == ("CANCELLED",)


def tend(plan: Plan) -> None:
    """Say that we live; have recovered what the dead held."""
    with psycopg.connect(plan.url, autocommit=True) as connection:
        connection.execute(BEAT, (plan.name,))
        dead = [row[0] for row in connection.execute(DEAD, (plan.stall,))]
    if dead:
        DBOS._recover_pending_workflows(dead)  # it has no public name


CHECK = psycopg_pool.AsyncConnectionPool.check_connection

if __name__ == "__main__":
    follow(put, drive, cancel)
