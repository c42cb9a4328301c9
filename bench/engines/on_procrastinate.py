"""Runs as jobs of procrastinate: the session is the lock, the job's attempt is the epoch.

Not in the package, so ours: somebody has to ask for stalled jobs, and put them back. Variant
`fenced`: a driver that has lost a job may not say any more how it ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

import procrastinate
import psycopg
import psycopg_pool
from bench.engines.command import follow
from bench.engines.steps import Plan, Steps, note, run_ids
from procrastinate import jobs, manager

OURS = """
SELECT count(*) AS count FROM procrastinate_jobs
WHERE id = %(id)s AND worker_id = %(worker)s AND attempts = %(attempts)s AND status = 'doing'
"""
POLL = 0.1
"""Seconds; by itself 5, as a job that ends wakes nobody for the next one of its lock."""


class FencedJobs(manager.JobManager):
    """Ends only jobs that are still its own."""

    async def finish_job(self, job: jobs.Job, status: jobs.Status, delete_job: bool) -> None:
        """As procrastinate's, for the holder alone."""
        row = await self.connector.execute_query_one_async(
            OURS, id=job.id, worker=job.worker_id, attempts=job.attempts
        )
        if row["count"]:
            await super().finish_job(job, status, delete_job)


def app_of(plan: Plan) -> procrastinate.App:
    """The application, without its tasks."""
    connector = procrastinate.PsycopgConnector(conninfo=plan.url, max_size=8)
    app = procrastinate.App(connector=connector)
    if plan.variant == "fenced":
        app.job_manager = FencedJobs(connector)
    return app


async def put(plan: Plan) -> None:
    """Ask for every run."""
    app = app_of(plan)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for run, session, _ in run_ids():
            job = app.configure_task("drive", lock=f"s{session}")
            await job.defer_async(run=run)


async def cancel(plan: Plan, run: str) -> None:
    """Have a run end."""
    app = app_of(plan)
    async with app.open_async():
        found = [
            one for one in await app.job_manager.list_jobs_async() if one.task_kwargs["run"] == run
        ]
        note(plan.url, "asked", run)
        await app.job_manager.cancel_job_by_id_async(found[0].id, abort=True)


async def drive(plan: Plan) -> None:
    """Drive runs until the process ends."""
    app = app_of(plan)
    pool = psycopg_pool.AsyncConnectionPool(
        plan.url, min_size=1, max_size=4, open=False, check=CHECK
    )
    await pool.open()
    steps = Steps(plan, pool)

    @app.task(name="drive", pass_context=True)
    async def task(context: Any, run: str) -> None:
        epoch = context.job.attempts + 1
        try:
            await steps.claim(run, epoch)
            await steps.drive(run, epoch)
        except asyncio.CancelledError:
            await steps.aborted(run, epoch)
            raise

    async with app.open_async():
        while True:
            tending = asyncio.create_task(tend(app, plan))
            worker = app.run_worker_async(
                concurrency=plan.at_once,
                fetch_job_polling_interval=POLL,
                update_heartbeat_interval=plan.stall / 3,
                stalled_worker_timeout=plan.stall,
                delete_jobs="successful",
                install_signal_handlers=False,
            )
            await asyncio.gather(worker, return_exceptions=True)
            tending.cancel()
            note_restart(plan)
            await asyncio.sleep(1)


async def tend(app: procrastinate.App, plan: Plan) -> None:
    """Put back what stalled drivers held."""
    while True:
        await asyncio.sleep(1)
        try:
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=plan.stall):
                await app.job_manager.retry_job(job)
        except procrastinate.exceptions.ConnectorException:
            continue  # somebody else was quicker, or the server is away


def note_restart(plan: Plan) -> None:
    """A worker that gave up is begun again, as an init system would."""
    try:
        note(plan.url, "restarted", "", plan.name)
    except psycopg.OperationalError:
        return


CHECK = psycopg_pool.AsyncConnectionPool.check_connection

if __name__ == "__main__":
    follow(put, drive, cancel)
