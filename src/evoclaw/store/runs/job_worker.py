"""The procrastinate worker: fetches jobs, sends heartbeats, and listens for new jobs.

The only module that imports procrastinate. It overrides two behaviours: a stalled worker does not
finish jobs that other workers have by now, and a short server outage does not end the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from procrastinate import App, JobContext, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job as Fetched
from procrastinate.jobs import Status
from procrastinate.manager import JobManager, NotificationCallback
from procrastinate.schema import SchemaManager
from procrastinate.worker import Worker
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from evoclaw.store.databases.database import Connection, Database, Schema, StoreError
from evoclaw.store.databases.migrations import PUT_VERSION
from evoclaw.store.databases.postgres_connection import PostgresConnection, PostgresServer
from evoclaw.store.databases.sqlite_file import refuse_newer_schema
from evoclaw.store.runs.job_queue import JobQueue, SessionJob
from evoclaw.store.runs.session_steps import TASK_NAME

logger = logging.getLogger(__name__)
FETCH_POLL_INTERVAL_S = 5.0
"""Seconds between two polls for jobs without a notification."""
RETRY_DELAY_S = 1.0
"""Seconds before another try after a failure."""
CONNECT_TIMEOUT_S = 5.0
"""Seconds to wait for a connection."""
TCP_USER_TIMEOUT_S = 10
"""Seconds after which a connection without acknowledgements is closed."""
MAX_CONNECTION_IDLE_S = 8.0
"""Seconds after which an unused second connection is closed."""
ABORT_POLL_INTERVAL_S = 86_400.0
UPDATE_HEARTBEAT = """
SELECT procrastinate_update_heartbeat_v1(%(worker_id)s)::text,
    EXISTS (SELECT 1 FROM procrastinate_workers WHERE id = %(worker_id)s) AS known
"""
FAIL_JOB = """
SELECT procrastinate_finish_job_v1(id, 'failed', true)::text FROM (
    SELECT id FROM procrastinate_jobs
    WHERE id = %(id)s AND worker_id = %(worker)s AND attempts = %(attempt)s AND status = 'doing'
    FOR UPDATE
) AS ours
"""
ChooseTenants = Callable[[Counter[str]], Awaitable[Sequence[Sequence[str]]]]
"""The tenants whose jobs may be fetched, in order, given the running jobs of each tenant."""


async def create_tables(database: Database) -> None:
    """Create or migrate the tables of procrastinate in EvoClaw's schema."""
    files = _migrations()
    steps = Schema("procrastinate", tuple((file.name,) for file in files))

    def work(connection: Connection) -> None:
        assert isinstance(connection, PostgresConnection)
        find = "SELECT version FROM parts WHERE name = ?"
        row = connection.execute(find, (steps.name,)).fetchone()
        if row is not None:
            refuse_newer_schema(steps, row[0], database.name)
        # First: another process that does the same waits here, and starts again.
        connection.execute(PUT_VERSION, (steps.name, len(files)))
        if row is None:
            connection.raw.execute(SchemaManager.get_schema().encode())
        else:
            for file in files[row[0] :]:
                connection.raw.execute(file.read_bytes())

    def is_current(connection: Connection) -> bool:
        find = "SELECT 1 FROM parts WHERE name = ? AND version = ?"
        return connection.execute(find, (steps.name, len(files))).fetchone() is not None

    if not await database.read(is_current):
        await database.write(work)


def _migrations() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


class SessionJobManager(JobManager):
    """A job manager that tolerates server outages and fetches fairly between tenants."""

    def __init__(self, connector: PsycopgConnector, queue: JobQueue, choose: ChooseTenants) -> None:
        super().__init__(connector)
        self._queue, self._choose = queue, choose
        self._running: Counter[str] = Counter()
        self._on_notification: NotificationCallback | None = None
        self.presumed_dead = asyncio.Event()
        """Set when this process missed its heartbeats and others took it for dead."""

    async def trigger_fetch(self) -> None:
        """Have the worker fetch jobs now."""
        if self._on_notification is not None:
            await self._on_notification(
                channel="", notification={"type": "job_inserted", "job_id": 0}
            )

    async def register_worker(self) -> int:
        """Register the worker; its id becomes part of the holder name."""
        self._queue.worker_id = await super().register_worker()
        return self._queue.worker_id

    async def unregister_worker(self, worker_id: int) -> None:
        """Unregister the worker; if that fails, its missing heartbeats do the same."""
        try:
            await super().unregister_worker(worker_id)
        except ConnectorException as problem:
            logger.info("worker could not be unregistered: %s", _error_text(problem))

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Fetched | None:
        """Fetch the next job, of the tenants with the fewest running jobs first."""
        try:
            for tenants in await self._choose(self._running):
                found = await super().fetch_job(tenants, worker_id)
                if found is not None:
                    self._running[found.queue] += 1
                    return found
        except (ConnectorException, StoreError) as problem:
            logger.debug("fetching a job failed: %s", _error_text(problem))
        return None

    async def finish_job(self, job: Fetched, status: Status, delete_job: bool) -> None:
        """Mark only failed jobs: the end of the others is stored with the end of their runs."""
        self._running[job.queue] -= 1
        if status is Status.FAILED:
            try:
                await self.connector.execute_query_all_async(
                    FAIL_JOB, id=job.id, worker=job.worker_id, attempt=job.attempts
                )
            except ConnectorException as problem:
                logger.warning(
                    "job %s could not be marked as failed; it will be retried: %s",
                    job.id,
                    _error_text(problem),
                )
        await self.trigger_fetch()

    async def update_heartbeat(self, worker_id: int) -> None:
        """Send a heartbeat, and notice if other processes took this one for dead."""
        try:
            row = await self.connector.execute_query_one_async(
                UPDATE_HEARTBEAT, worker_id=worker_id
            )
        except ConnectorException as problem:
            logger.debug("heartbeat failed: %s", _error_text(problem))
            return
        if not row["known"]:
            self.presumed_dead.set()

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Listen for new jobs; reconnect while the server is unreachable."""
        self._on_notification = on_notification
        while True:
            await self.trigger_fetch()  # a notification may have been missed
            try:
                await super().listen_for_jobs(on_notification=on_notification, queues=queues)
            except ConnectorException as problem:
                logger.debug("listening for new jobs failed: %s", _error_text(problem))
            await asyncio.sleep(RETRY_DELAY_S)


def _raise_if_cancelled() -> None:
    """Cancel this task again: a pool loses it if a connection opens, or a query ends, just then.

    Before Python 3.12, `asyncio.wait_for` returns a result that is there instead.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class JobWorker:
    """Runs the procrastinate worker: this process drives the sessions that it fetches as jobs."""

    def __init__(
        self,
        server: PostgresServer,
        queue: JobQueue,
        drive: Callable[[SessionJob], Awaitable[None]],
    ) -> None:
        """Choose the parts.

        Args:
            server: The PostgreSQL server of the jobs.
            queue: Stores the outcome of jobs.
            drive: Runs one job; its outcome is stored when this returns.
        """
        self._server, self._queue, self._drive = server, queue, drive
        self._jobs: SessionJobManager | None = None

    async def fetch(self) -> None:
        """Fetch jobs now, if the worker runs."""
        if self._jobs is not None:
            await self._jobs.trigger_fetch()

    async def serve(self, choose: ChooseTenants, concurrency: int, stall_s: float) -> None:
        """Run jobs until this is cancelled.

        Args:
            choose: The tenants whose jobs may be fetched.
            concurrency: How many jobs run at the same time.
            stall_s: Seconds without a heartbeat after which a process counts as dead.
        """
        task = asyncio.current_task()
        while task is not None and not task.cancelling():
            try:
                await self._run_worker(choose, concurrency, stall_s)
            except (ConnectorException, psycopg.Error) as problem:
                logger.warning("job worker failed, restarting: %s", _error_text(problem))
            await asyncio.sleep(RETRY_DELAY_S)

    async def _run_worker(self, choose: ChooseTenants, concurrency: int, stall_s: float) -> None:
        pool = self._pool()
        connector = PsycopgConnector(configure=self._configure)
        app = App(connector=connector)
        app.job_manager = self._jobs = jobs = SessionJobManager(connector, self._queue, choose)

        @app.task(name=TASK_NAME, pass_context=True)
        async def drive(context: JobContext, tenant: str, session_id: str) -> None:  # pyright: ignore[reportUnusedFunction]
            job = context.job
            assert job.id is not None
            assert job.worker_id is not None
            await self._drive(SessionJob(job.id, job.worker_id, job.attempts, tenant, session_id))

        async with pool:
            await pool.wait(CONNECT_TIMEOUT_S)
            async with app.open_async(pool):
                _raise_if_cancelled()
                worker = Worker(
                    app,
                    concurrency=concurrency,
                    fetch_job_polling_interval=FETCH_POLL_INTERVAL_S,
                    abort_job_polling_interval=ABORT_POLL_INTERVAL_S,
                    update_heartbeat_interval=stall_s / 3,
                    stalled_worker_timeout=stall_s,
                    shutdown_graceful_timeout=0,
                    install_signal_handlers=False,
                )
                await self._run_until_presumed_dead(worker, jobs)

    async def _run_until_presumed_dead(self, worker: Worker, jobs: SessionJobManager) -> None:
        working = asyncio.create_task(worker.run(), name="jobs")
        dead = asyncio.create_task(jobs.presumed_dead.wait())
        try:
            await asyncio.wait([working, dead], return_when=asyncio.FIRST_COMPLETED)
        finally:
            worker.stop()  # see `_raise_if_cancelled`
            for task in (working, dead):
                task.cancel()
            await asyncio.wait([working, dead])
            self._queue.worker_id = 0
        if not working.cancelled():
            working.result()
        logger.warning("this orchestrator missed its heartbeats; its job worker restarts")

    def _pool(self) -> AsyncConnectionPool[Any]:
        # The pool would log each try while the server is unreachable; its users log that already.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        return AsyncConnectionPool(
            self._server.url,
            kwargs={
                **self._server.connect_arguments,
                "application_name": "evoclaw jobs",
                "tcp_user_timeout": TCP_USER_TIMEOUT_S * 1000,
            },
            configure=self._configure,
            check=AsyncConnectionPool.check_connection,
            min_size=1,
            max_size=2,
            max_idle=MAX_CONNECTION_IDLE_S,
            timeout=CONNECT_TIMEOUT_S,
            # The next request tries again: the pool's own retries would wait longer each time.
            reconnect_timeout=RETRY_DELAY_S,
            open=False,
        )

    async def _configure(self, connection: Any) -> None:
        await connection.set_autocommit(True)
        path = SQL("SET search_path = {}").format(Identifier(self._server.schema))
        await connection.execute(path)


def _error_text(problem: BaseException) -> str:
    return " ".join(str(problem.__cause__ or problem).split()) or type(problem).__name__
