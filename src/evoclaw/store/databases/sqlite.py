"""A SQLite database: statements run in the event loop, commits in a thread; callers share commits.

Statements touch memory only, and take less time than a round trip to another thread would. Only the
commit waits for the disk, so only the commit runs in the thread.

A deferred write stays in the open transaction until the next commit, at most for a moment. If that
transaction fails, as on a full disk, its writes are repeated before anything else: they are kept,
or the next write raises an error.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from evoclaw.store.databases.database import (
    DamagedStore,
    Dialect,
    Schema,
    StoreError,
    StoreFull,
    Work,
    add_checksum,
    verify_checksum,
)
from evoclaw.store.databases.sqlite_file import (
    UNAVAILABLE_TIMEOUT_S,
    SingleSchemaFormat,
    SqliteFileFormat,
    open_file,
    translate_error,
)
from evoclaw.store.databases.threaded_database import ThreadedDatabase
from evoclaw.store.databases.write_requests import (
    MAX_BATCH_REQUESTS,
    DeferredCommitFailed,
    WriteRequest,
    attempt_all,
)

__all__ = [
    "DamagedStore",
    "Schema",
    "SqliteDatabase",
    "StoreError",
    "StoreFull",
    "Work",
    "add_checksum",
    "verify_checksum",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Step = Callable[[], None]
StepDone = Callable[[sqlite3.Error | None], None]

DEFERRED_COMMIT_DELAY_S = 0.02
"""Seconds at most before a deferred commit."""
COMMIT_RETRY_DELAY_S = 1.0
"""Seconds before a failed deferred commit is tried again."""


class SqliteDatabase(ThreadedDatabase):
    """One file, and one thread that waits for its disk.

    All requests that arrive during a commit share the next one, so the disk is waited for once per
    batch, not once per write.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        set_aside: Path | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """Take over an open connection; see `open`."""
        self.path = path
        self.dialect: Dialect = "sqlite"
        self.set_aside = set_aside
        """Where a damaged file was moved to; the caller must report that."""
        loop = asyncio.get_running_loop()
        super().__init__(str(path), path.name, _SqliteWorker(path, connection, loop, durable))

    @classmethod
    async def open(
        cls,
        path: Path,
        contents: Schema | SqliteFileFormat,
        *,
        durable: bool = True,
        set_aside: bool = False,
    ) -> SqliteDatabase:
        """Open or create a file, after an integrity check.

        Args:
            path: The file; missing folders are created.
            contents: Its schema or format.
            durable: Whether a write is on the disk when it returns, not just in the page cache.
            set_aside: Whether a damaged file is moved aside and replaced by a new one, instead of
                raising `DamagedStore`.
        """
        form = SingleSchemaFormat(contents) if isinstance(contents, Schema) else contents
        opening = asyncio.get_running_loop().run_in_executor(
            None, open_file, path, form, durable, set_aside
        )
        try:
            connection, aside = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        return cls(path, connection, aside, durable=durable)


class _SqliteWorker:
    """Runs requests in batches; the thread runs one step at a time and reports its end."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        durable: bool,
    ) -> None:
        self.commits, self.busy_s = 0, 0.0
        self.broken: BaseException | None = None
        """Why no write is possible any more."""
        self._path, self._connection, self._loop = path, connection, loop
        self._durable = durable
        self._waiting: deque[WriteRequest] = deque()
        self._deferred: list[WriteRequest] = []
        """Deferred commits: in the open transaction; without one, to be repeated before the next
        request."""
        self._problem: BaseException | None = None
        self._commit_timer: asyncio.TimerHandle | None = None
        self._step_running = self._closing = False
        self._step_started_at = 0.0
        self._steps: SimpleQueue[tuple[Step, StepDone] | None] = SimpleQueue()

    def submit(self, request: WriteRequest) -> None:
        """Run a request now, or when the commit in progress is done."""
        self._waiting.append(request)
        self._process_queue()

    def close(self) -> None:
        """Finish all requests, then end."""
        self._closing = True
        self._process_queue()

    def run(self, ended: asyncio.Event) -> None:
        """The main function of the thread."""
        while (queued := self._steps.get()) is not None:
            step, then = queued
            if not self._call_in_loop(self._step_done, then, _error_of(step)):
                break
        self._connection.close()
        self._call_in_loop(ended.set)

    def _process_queue(self) -> None:
        started = time.monotonic()
        while self._waiting and not self._step_running:
            count = min(len(self._waiting), MAX_BATCH_REQUESTS)
            requests = [self._waiting.popleft() for _ in range(count)]
            for request in requests:
                if not request.writes:
                    self._read(request)
            if writes := [request for request in requests if request.writes]:
                self._write(writes)
        self.busy_s += time.monotonic() - started
        if self._closing and not self._step_running:
            self._end()

    def _end(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        while self._deferred and self.broken is None and not self._step_running:
            self._write([])
        if not self._step_running:
            self._steps.put(None)

    def _read(self, request: WriteRequest) -> None:
        if self._deferred and not self._connection.in_transaction:
            request.problem = self._problem  # it would miss deferred writes
        else:
            request.attempt(self._connection)
        request.resolve(self._translate_error)

    def _write(self, requests: list[WriteRequest], *, savepoints: bool = False) -> None:
        """Run writes; without any, commit the deferred ones."""
        if self.broken is not None:
            self._on_failed(requests, self.broken)
        elif self._connection.in_transaction:
            # It has deferred writes, which must survive a request that fails.
            self._execute(requests, savepoints=True)
        else:
            self._write_in_new_transaction(requests, savepoints=savepoints)

    def _write_in_new_transaction(self, requests: list[WriteRequest], *, savepoints: bool) -> None:
        def then(problem: sqlite3.Error | None) -> None:
            if problem is None:
                self._execute([*self._deferred, *requests], savepoints=savepoints)
            else:
                self._on_failed(requests, problem)

        problem = _error_of(self._begin)
        if problem is not None and problem.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            self._run_in_thread(self._begin_with_timeout, then)  # another process is writing
        else:
            then(problem)

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _begin_with_timeout(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout={round(UNAVAILABLE_TIMEOUT_S * 1000)}")
        try:
            self._begin()
        finally:
            self._connection.execute("PRAGMA busy_timeout=0")

    def _execute(self, requests: list[WriteRequest], *, savepoints: bool) -> None:
        """Run a batch in the open transaction."""
        new = [request for request in requests if not request.deferred]
        try:
            done = attempt_all(
                self._connection,
                requests,
                savepoints=savepoints,
                check_transaction=self._check_transaction,
            )
            if not done:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            self._on_failed(new, problem)
            return
        if done:
            self._on_executed(requests, new)
        elif len(requests) > 1:
            self._write(new, savepoints=True)
        else:
            self._resolve_all(new)

    def _on_executed(self, requests: list[WriteRequest], new: list[WriteRequest]) -> None:
        lost = [
            request.problem
            for request in requests
            if request.deferred and request.problem is not None
        ]
        if lost:
            self.broken = DeferredCommitFailed(str(self._path), lost[0])
            self._on_failed(new, self.broken)
            return
        for request in new:
            if not request.wait:
                self._defer(request)
        waiting = [request for request in new if request.wait]
        if waiting or not new:
            self._commit_batch(waiting)

    def _check_transaction(self, request: WriteRequest) -> None:
        if not self._connection.in_transaction:
            # Some errors, such as a full disk, roll back the whole transaction.
            cause = request.problem
            raise cause if isinstance(cause, sqlite3.Error) else sqlite3.Error("rolled back")

    def _defer(self, request: WriteRequest) -> None:
        """Return the result now, and commit later."""
        if request.problem is None:
            request.deferred = True
            self._deferred.append(request)
            self._schedule_commit(DEFERRED_COMMIT_DELAY_S)
        request.resolve(self._translate_error)

    def _schedule_commit(self, seconds: float) -> None:
        if self._commit_timer is None and not self._closing:
            self._commit_timer = self._loop.call_later(seconds, self._commit_deferred)

    def _commit_deferred(self) -> None:
        self._commit_timer = None
        if self._deferred and not self._step_running:
            self._write([])

    def _commit_batch(self, waiting: list[WriteRequest]) -> None:
        """Commit the transaction."""

        def then(problem: sqlite3.Error | None) -> None:
            if problem is None:
                self._deferred.clear()
                self._problem = None
                self._resolve_all(waiting)
            else:
                self._on_failed(waiting, problem)

        if self._durable:
            self._run_in_thread(self._commit, then)
        else:
            then(_error_of(self._commit))

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        self.commits += 1

    def _on_failed(self, requests: list[WriteRequest], problem: BaseException) -> None:
        """Roll back the transaction; its deferred writes are repeated in the next one."""
        # If even this fails, the next batch cannot start, fails, and rolls back again.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._problem = problem
        for request in requests:
            if request.problem is None:
                request.problem = problem
        self._resolve_all(requests)
        if self._deferred and self.broken is None:
            logger.warning("%s: deferred commit failed, retrying: %s", self._path, problem)
            if self._closing:
                self.broken = self._translate_error(problem)
            self._schedule_commit(COMMIT_RETRY_DELAY_S)

    def _resolve_all(self, requests: list[WriteRequest]) -> None:
        for request in requests:
            request.resolve(self._translate_error)

    def _translate_error(self, problem: BaseException) -> BaseException:
        return (
            translate_error(problem, self._path) if isinstance(problem, sqlite3.Error) else problem
        )

    def _run_in_thread(self, step: Step, then: StepDone) -> None:
        """Run a step that may block in the thread; no request runs meanwhile."""
        self._step_running, self._step_started_at = True, time.monotonic()
        self._steps.put((step, then))

    def _step_done(self, then: StepDone, problem: sqlite3.Error | None) -> None:
        self._step_running = False
        self.busy_s += time.monotonic() - self._step_started_at
        then(problem)
        self._process_queue()

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> bool:
        # In a closed loop no caller waits any more.
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True


def _error_of(step: Step) -> sqlite3.Error | None:
    try:
        step()
    except sqlite3.Error as problem:
        return problem
    return None


def _close_unused(opening: asyncio.Future[tuple[sqlite3.Connection, Path | None]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
