"""The worker of procrastinate: it fetches jobs, says that we live, and hears of new ones.

The one file that imports it. What it must not do by itself is taken from it: a worker that slept
does not end jobs that are others' by now, and a server that is away for a moment ends no worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from procrastinate import App, JobContext, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job as Fetched
from procrastinate.jobs import Status
from procrastinate.manager import JobManager, NotificationCallback
from procrastinate.schema import SchemaManager
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from evoclaw.store.databases.database import Connection, Database, Schema, StoreError
from evoclaw.store.databases.opening import refuse_newer
from evoclaw.store.databases.parts import PUT
from evoclaw.store.databases.postgres_link import Server, Spoken
from evoclaw.store.runs.job_queue import TASK, Job, JobQueue

logger = logging.getLogger(__name__)
POLL = 5.0
"""Seconds between two looks for jobs that nobody told of."""
PAUSE = 1.0
"""Seconds before what failed is tried again."""
PATIENCE = 5.0
"""Seconds for a connection to be had."""
STUCK = 10
"""Seconds after which a connection is given up that nothing comes over."""
IDLE = 8.0
"""Seconds after which a second connection that is not needed any more is closed."""
NEVER = 86_400.0
ALIVE = """
SELECT procrastinate_update_heartbeat_v1(%(worker_id)s)::text,
    EXISTS (SELECT 1 FROM procrastinate_workers WHERE id = %(worker_id)s) AS known
"""
FAILED = """
SELECT procrastinate_finish_job_v1(id, 'failed', true)::text FROM (
    SELECT id FROM procrastinate_jobs
    WHERE id = %(id)s AND worker_id = %(worker)s AND attempts = %(attempt)s AND status = 'doing'
    FOR UPDATE
) AS ours
"""
Choose = Callable[[Counter[str]], Awaitable[Sequence[Sequence[str]]]]
"""Whose jobs may be fetched, in which order, given how many of each tenant are done here."""


async def found(database: Database) -> None:
    """Make the tables of procrastinate beside ours, or bring them up to date."""
    files = _migrations()
    steps = Schema("procrastinate", tuple((file.name,) for file in files))

    def work(connection: Connection) -> None:
        assert isinstance(connection, Spoken)
        find = "SELECT version FROM parts WHERE name = ?"
        row = connection.execute(find, (steps.name,)).fetchone()
        if row is None:
            connection.raw.execute(SchemaManager.get_schema().encode())
        else:
            refuse_newer(steps, row[0], database.name)
            for file in files[row[0] :]:
                connection.raw.execute(file.read_bytes())
        connection.execute(PUT, (steps.name, len(files)))

    def is_current(connection: Connection) -> bool:
        find = "SELECT 1 FROM parts WHERE name = ? AND version = ?"
        return connection.execute(find, (steps.name, len(files))).fetchone() is not None

    if not await database.read(is_current):
        await database.write(work)


def _migrations() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


class Jobs(JobManager):
    """Speaks to the tables of procrastinate for its worker, more carefully than by itself."""

    def __init__(self, connector: PsycopgConnector, queue: JobQueue, choose: Choose) -> None:
        super().__init__(connector)
        self._queue, self._choose = queue, choose
        self._doing: Counter[str] = Counter()
        self._tell: NotificationCallback | None = None
        self.forgotten = asyncio.Event()
        """This process was silent for so long that others took it for dead."""

    async def poke(self) -> None:
        """Have the worker look for jobs."""
        if self._tell is not None:
            await self._tell(channel="", notification={"type": "job_inserted", "job_id": 0})

    async def register_worker(self) -> int:
        """Be known, as a holder too."""
        self._queue.worker = await super().register_worker()
        return self._queue.worker

    async def unregister_worker(self, worker_id: int) -> None:
        """Be known no longer; if that cannot be said now, silence says it."""
        try:
            await super().unregister_worker(worker_id)
        except ConnectorException as problem:
            logger.info("the worker was not signed off: %s", _words(problem))

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Fetched | None:
        """The next job, of a tenant that has few here."""
        try:
            for tenants in await self._choose(self._doing):
                found = await super().fetch_job(tenants, worker_id)
                if found is not None:
                    self._doing[found.queue] += 1
                    return found
        except (ConnectorException, StoreError) as problem:
            logger.debug("no job could be fetched: %s", _words(problem))
        return None

    async def finish_job(self, job: Fetched, status: Status, delete_job: bool) -> None:
        """Nothing, as the end of a job is written with what ended it; but a fault must be told."""
        self._doing[job.queue] -= 1
        if status is Status.FAILED:
            try:
                await self.connector.execute_query_all_async(
                    FAILED, id=job.id, worker=job.worker_id, attempt=job.attempts
                )
            except ConnectorException as problem:
                logger.warning("job %s is left to be put back: %s", job.id, _words(problem))
        await self.poke()

    async def update_heartbeat(self, worker_id: int) -> None:
        """Say that we live, and see whether we count as dead."""
        try:
            row = await self.connector.execute_query_one_async(ALIVE, worker_id=worker_id)
        except ConnectorException as problem:
            logger.debug("it could not be said that we live: %s", _words(problem))
            return
        if not row["known"]:
            self.forgotten.set()

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Hear of new jobs, again and again if the server goes away."""
        self._tell = on_notification
        while True:
            await self.poke()  # something may have been missed
            try:
                await super().listen_for_jobs(on_notification=on_notification, queues=queues)
            except ConnectorException as problem:
                logger.debug("new jobs are not heard of: %s", _words(problem))
            await asyncio.sleep(PAUSE)


class JobEngine:
    """Has sessions driven by this process, as procrastinate gives them out."""

    def __init__(
        self, server: Server, queue: JobQueue, drive: Callable[[Job], Awaitable[None]]
    ) -> None:
        """Choose the parts.

        Args:
            server: Where the jobs are.
            queue: Writes what becomes of them.
            drive: Does one; when it returns, what became of it is written.
        """
        self._server, self._queue, self._drive = server, queue, drive

    async def serve(self, choose: Choose, at_once: int, stall_s: float) -> None:
        """Do jobs until this is cancelled.

        Args:
            choose: Whose jobs may be fetched.
            at_once: How many are done at the same time.
            stall_s: Seconds of silence after which a process counts as dead.
        """
        task = asyncio.current_task()
        while task is not None and not task.cancelling():
            try:
                await self._work(choose, at_once, stall_s)
            except (ConnectorException, psycopg.Error) as problem:
                logger.warning("jobs are not done: %s", _words(problem))
            await asyncio.sleep(PAUSE)

    async def _work(self, choose: Choose, at_once: int, stall_s: float) -> None:
        pool = self._pool()
        connector = PsycopgConnector(configure=self._configure)
        app = App(connector=connector)
        app.job_manager = jobs = Jobs(connector, self._queue, choose)

        @app.task(name=TASK, pass_context=True)
        async def drive(context: JobContext, tenant: str, session_id: str) -> None:  # pyright: ignore[reportUnusedFunction]
            job = context.job
            assert job.id is not None
            assert job.worker_id is not None
            await self._drive(Job(job.id, job.worker_id, job.attempts, tenant, session_id))

        async with pool:
            await pool.wait(PATIENCE)
            async with app.open_async(pool):
                worker = app.run_worker_async(
                    concurrency=at_once,
                    fetch_job_polling_interval=POLL,
                    abort_job_polling_interval=NEVER,
                    update_heartbeat_interval=stall_s / 3,
                    stalled_worker_timeout=stall_s,
                    shutdown_graceful_timeout=0,
                    install_signal_handlers=False,
                )
                await self._until_forgotten(worker, jobs)

    async def _until_forgotten(self, worker: Coroutine[Any, Any, None], jobs: Jobs) -> None:
        works = asyncio.create_task(worker, name="jobs")
        forgotten = asyncio.create_task(jobs.forgotten.wait())
        try:
            await asyncio.wait([works, forgotten], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (works, forgotten):
                task.cancel()
            await asyncio.wait([works, forgotten])
            self._queue.worker = 0
        if not works.cancelled():
            works.result()
        logger.warning("this orchestrator was silent for too long; it begins anew")

    def _pool(self) -> AsyncConnectionPool[Any]:
        # It would tell of each try while the server is away; that is told by those who use it.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        return AsyncConnectionPool(
            self._server.url,
            kwargs={
                **self._server.arguments,
                "application_name": "evoclaw jobs",
                "tcp_user_timeout": STUCK * 1000,
            },
            configure=self._configure,
            check=AsyncConnectionPool.check_connection,
            min_size=1,
            max_size=2,
            max_idle=IDLE,
            timeout=PATIENCE,
            # Whoever asks next tries anew: a pool by itself would wait longer each time.
            reconnect_timeout=PAUSE,
            open=False,
        )

    async def _configure(self, connection: Any) -> None:
        await connection.set_autocommit(True)
        path = SQL("SET search_path = {}").format(Identifier(self._server.schema))
        await connection.execute(path)


def _words(problem: BaseException) -> str:
    return " ".join(str(problem.__cause__ or problem).split()) or type(problem).__name__
