"""Executes the requests of a SQLite database in batches; a thread waits for the disk.

Statements touch memory only, and take less time than a round trip to another thread would. Only the
commit waits for the disk, so only the commit runs in the thread; and not even that, for a request
that is alone on a fast disk.

A deferred write stays in the open transaction until the next commit, at most for a moment. If that
transaction fails, as on a full disk, its writes are repeated before anything else: they are kept,
or the next write raises an error.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from evoclaw.store.databases.database import Work
from evoclaw.store.databases.sqlite_file import UNAVAILABLE_TIMEOUT_S, translate_error
from evoclaw.store.databases.write_requests import (
    MAX_BATCH_REQUESTS,
    DeferredCommitFailed,
    DeferredResult,
    WriteRequest,
    attempt_all,
)

logger = logging.getLogger(__name__)
DiskWork = Callable[[], None]
DiskWorkDone = Callable[[sqlite3.Error | None], None]

FAST_COMMIT_S = 0.00025
"""Seconds of a commit that is not worth the thread: to wake it and to be woken again takes 0.1 ms,
and more CPU time than the commit."""
LONE_COMMIT_GAP_S = 0.0003
"""Seconds since the last commit after which one request is alone: the next ones of a burst are to
share a commit, and gather while the thread is busy."""
DEFERRED_COMMIT_DELAY_S = 0.02
"""Seconds at most before a deferred commit."""
COMMIT_RETRY_DELAY_S = 1.0
"""Seconds before a failed deferred commit is tried again."""


class SqliteWorker:
    """Runs requests in batches; the thread does what waits for the disk, and reports its end."""

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
        self._disk_busy = self._closing = False
        self._disk_since = 0.0
        self._commit_s, self._committed_at = math.inf, 0.0
        """How long the last commit took, and when it ended."""
        self._disk_work: SimpleQueue[tuple[DiskWork, DiskWorkDone] | None] = SimpleQueue()

    @property
    def is_idle(self) -> bool:
        """Whether everything is committed."""
        return self.broken is None and not (self._waiting or self._deferred or self._disk_busy)

    def submit(self, request: WriteRequest) -> None:
        """Run a request now, or when the commit in progress is done."""
        self._waiting.append(request)
        self._process_queue()

    def commit_at_once(self, work: Work[Any]) -> tuple[bool, Any]:
        """Run a write and commit it right here, if nothing is in its way.

        Returns whether it did, and the result. If it fails, nothing is written, and a request for
        the same write reports why.
        """
        if self._durable or self._closing or not self.is_idle:
            return False, None
        try:
            self._begin()
            result = work(self._connection)
            self._commit()
        except BaseException:  # the request for the same write reports it
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return False, None
        return True, result

    def close(self) -> None:
        """Finish all requests, then end."""
        self._closing = True
        self._process_queue()

    def run(self, ended: asyncio.Event) -> None:
        """The main function of the thread."""
        while (queued := self._disk_work.get()) is not None:
            work, then = queued
            if not self._call_in_loop(self._disk_work_done, then, _error_of(work)):
                break
        self._connection.close()
        self._call_in_loop(ended.set)

    def _process_queue(self) -> None:
        started = time.monotonic()
        while self._waiting and not self._disk_busy:
            count = min(len(self._waiting), MAX_BATCH_REQUESTS)
            requests = [self._waiting.popleft() for _ in range(count)]
            for request in requests:
                if not request.writes:
                    self._read(request)
            if writes := [request for request in requests if request.writes]:
                self._write(writes)
        self.busy_s += time.monotonic() - started
        if self._closing and not self._disk_busy:
            self._end()

    def _end(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        while self._deferred and self.broken is None and not self._disk_busy:
            self._write([])
        if not self._disk_busy:
            self._disk_work.put(None)

    def _read(self, request: WriteRequest) -> None:
        if self._deferred and not self._connection.in_transaction:
            request.problem = self._problem  # it would miss deferred writes
        else:
            request.attempt(self._connection)
        request.resolve(self._translate_error)

    def _write(self, requests: list[WriteRequest], *, savepoints: bool = False) -> None:
        """Run writes; without any, commit the deferred ones."""
        has_work = any(request.work for request in requests)
        if self.broken is not None:
            self._on_failed(requests, self.broken)
        elif self._connection.in_transaction:
            # It has deferred writes, which must survive a request that fails.
            self._execute(requests, savepoints=has_work)
        elif not (has_work or self._deferred):
            self._resolve_all(requests)  # what they wait for is committed
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
        for request in requests:
            if request.deferred and isinstance(request.future, DeferredResult):
                request.resolve(self._translate_error)  # repeated: it may be another result
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
        if self._deferred and not self._disk_busy:
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

        if self._durable and not self._is_fast(len(waiting)):
            self._run_in_thread(self._commit, then)
        else:
            then(_error_of(self._commit))

    def _is_fast(self, waiting: int) -> bool:
        """Whether to wait for the disk here: one request is alone, and the disk was fast."""
        if waiting != 1 or self._commit_s > FAST_COMMIT_S:
            return False
        return time.monotonic() - self._committed_at >= LONE_COMMIT_GAP_S

    def _commit(self) -> None:
        started = time.monotonic()
        self._connection.execute("COMMIT")
        self._committed_at = time.monotonic()
        self._commit_s = self._committed_at - started
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

    def _run_in_thread(self, work: DiskWork, then: DiskWorkDone) -> None:
        """Run what may block in the thread; no request runs meanwhile."""
        self._disk_busy, self._disk_since = True, time.monotonic()
        self._disk_work.put((work, then))

    def _disk_work_done(self, then: DiskWorkDone, problem: sqlite3.Error | None) -> None:
        self._disk_busy = False
        self.busy_s += time.monotonic() - self._disk_since
        then(problem)
        self._process_queue()

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> bool:
        # In a closed loop no caller waits any more.
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True


def _error_of(work: DiskWork) -> sqlite3.Error | None:
    try:
        work()
    except sqlite3.Error as problem:
        return problem
    return None
