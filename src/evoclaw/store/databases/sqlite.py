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
    sealed,
    unsealed,
)
from evoclaw.store.databases.opening import PATIENCE, Form, Single, explained, open_file
from evoclaw.store.databases.orders import LARGEST_BATCH, Broken, Order, attempt_all
from evoclaw.store.databases.threaded import Threaded

__all__ = [
    "DamagedStore",
    "Schema",
    "SqliteDatabase",
    "StoreError",
    "StoreFull",
    "Work",
    "sealed",
    "unsealed",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Step = Callable[[], None]
Then = Callable[[sqlite3.Error | None], None]

LINGER = 0.02
"""Seconds at most before a deferred commit."""
AGAIN = 1.0
"""Seconds before a failed deferred commit is tried again."""


class SqliteDatabase(Threaded):
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
        super().__init__(str(path), path.name, _Writer(path, connection, loop, durable))

    @classmethod
    async def open(
        cls, path: Path, holds: Schema | Form, *, durable: bool = True, set_aside: bool = False
    ) -> SqliteDatabase:
        """Open or create a file, after an integrity check.

        Args:
            path: The file; missing folders are created.
            contents: Its schema or format.
            durable: Whether a write is on the disk when it returns, not just in the page cache.
            set_aside: Whether a damaged file is moved aside and replaced by a new one, instead of
                raising `DamagedStore`.
        """
        form = Single(holds) if isinstance(holds, Schema) else holds
        opening = asyncio.get_running_loop().run_in_executor(
            None, open_file, path, form, durable, set_aside
        )
        try:
            connection, aside = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        return cls(path, connection, aside, durable=durable)


class _Writer:
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
        self._waiting: deque[Order] = deque()
        self._promised: list[Order] = []
        """Deferred commits: in the open transaction; without one, to be repeated before the next
        request."""
        self._problem: BaseException | None = None
        self._due: asyncio.TimerHandle | None = None
        self._away = self._closing = False
        self._left_at = 0.0
        self._steps: SimpleQueue[tuple[Step, Then] | None] = SimpleQueue()

    def take(self, request: Order) -> None:
        """Run a request now, or when the commit in progress is done."""
        self._waiting.append(request)
        self._go_on()

    def close(self) -> None:
        """Finish all requests, then end."""
        self._closing = True
        self._go_on()

    def run(self, ended: asyncio.Event) -> None:
        """The main function of the thread."""
        while (queued := self._steps.get()) is not None:
            step, then = queued
            if not self._tell(self._back, then, _problem_of(step)):
                break
        self._connection.close()
        self._tell(ended.set)

    def _go_on(self) -> None:
        started = time.monotonic()
        while self._waiting and not self._away:
            count = min(len(self._waiting), LARGEST_BATCH)
            requests = [self._waiting.popleft() for _ in range(count)]
            for request in requests:
                if not request.writes:
                    self._read(request)
            if writes := [request for request in requests if request.writes]:
                self._write(writes)
        self.busy_s += time.monotonic() - started
        if self._closing and not self._away:
            self._end()

    def _end(self) -> None:
        if self._due is not None:
            self._due.cancel()
        while self._promised and self.broken is None and not self._away:
            self._write([])
        if not self._away:
            self._steps.put(None)

    def _read(self, request: Order) -> None:
        if self._promised and not self._connection.in_transaction:
            request.problem = self._problem  # it would miss deferred writes
        else:
            request.attempt(self._connection)
        request.resolve(self._explained)

    def _write(self, requests: list[Order], *, marks: bool = False) -> None:
        """Run writes; without any, commit the deferred ones."""
        if self.broken is not None:
            self._failed(requests, self.broken)
        elif self._connection.in_transaction:
            # It has deferred writes, which must survive a request that fails.
            self._do(requests, marks=True)
        else:
            self._write_anew(requests, marks=marks)

    def _write_anew(self, requests: list[Order], *, marks: bool) -> None:
        def then(problem: sqlite3.Error | None) -> None:
            if problem is None:
                self._do([*self._promised, *requests], marks=marks)
            else:
                self._failed(requests, problem)

        problem = _problem_of(self._begin)
        if problem is not None and problem.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            self._hand_over(self._begin_patiently, then)  # another process is writing
        else:
            then(problem)

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _begin_patiently(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout={round(PATIENCE * 1000)}")
        try:
            self._begin()
        finally:
            self._connection.execute("PRAGMA busy_timeout=0")

    def _do(self, requests: list[Order], *, marks: bool) -> None:
        """Run a batch in the open transaction."""
        new = [request for request in requests if not request.promised]
        try:
            done = attempt_all(self._connection, requests, marks=marks, alive=self._check)
            if not done:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            self._failed(new, problem)
            return
        if done:
            self._done(requests, new)
        elif len(requests) > 1:
            self._write(new, marks=True)
        else:
            self._tell_all(new)

    def _done(self, requests: list[Order], new: list[Order]) -> None:
        lost = [
            request.problem
            for request in requests
            if request.promised and request.problem is not None
        ]
        if lost:
            self.broken = Broken(str(self._path), lost[0])
            self._failed(new, self.broken)
            return
        for request in new:
            if not request.wait:
                self._promise(request)
        waiting = [request for request in new if request.wait]
        if waiting or not new:
            self._finish(waiting)

    def _check(self, request: Order) -> None:
        if not self._connection.in_transaction:
            # Some errors, such as a full disk, roll back the whole transaction.
            cause = request.problem
            raise cause if isinstance(cause, sqlite3.Error) else sqlite3.Error("rolled back")

    def _promise(self, request: Order) -> None:
        """Return the result now, and commit later."""
        if request.problem is None:
            request.promised = True
            self._promised.append(request)
            self._later(LINGER)
        request.resolve(self._explained)

    def _later(self, seconds: float) -> None:
        if self._due is None and not self._closing:
            self._due = self._loop.call_later(seconds, self._commit_promised)

    def _commit_promised(self) -> None:
        self._due = None
        if self._promised and not self._away:
            self._write([])

    def _finish(self, waiting: list[Order]) -> None:
        """Commit the transaction."""

        def then(problem: sqlite3.Error | None) -> None:
            if problem is None:
                self._promised.clear()
                self._problem = None
                self._tell_all(waiting)
            else:
                self._failed(waiting, problem)

        if self._durable:
            self._hand_over(self._commit, then)
        else:
            then(_problem_of(self._commit))

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        self.commits += 1

    def _failed(self, requests: list[Order], problem: BaseException) -> None:
        """Roll back the transaction; its deferred writes are repeated in the next one."""
        # If even this fails, the next batch cannot begin, fails, and rolls back again.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._problem = problem
        for request in requests:
            if request.problem is None:
                request.problem = problem
        self._tell_all(requests)
        if self._promised and self.broken is None:
            logger.warning("%s: deferred commit failed, retrying: %s", self._path, problem)
            if self._closing:
                self.broken = self._explained(problem)
            self._later(AGAIN)

    def _tell_all(self, requests: list[Order]) -> None:
        for request in requests:
            request.resolve(self._explained)

    def _explained(self, problem: BaseException) -> BaseException:
        return explained(problem, self._path) if isinstance(problem, sqlite3.Error) else problem

    def _hand_over(self, step: Step, then: Then) -> None:
        """Run a step that may block in the thread; no request runs meanwhile."""
        self._away, self._left_at = True, time.monotonic()
        self._steps.put((step, then))

    def _back(self, then: Then, problem: sqlite3.Error | None) -> None:
        self._away = False
        self.busy_s += time.monotonic() - self._left_at
        then(problem)
        self._go_on()

    def _tell(self, function: Callable[..., object], *arguments: object) -> bool:
        # In a closed loop no caller waits any more.
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True


def _problem_of(step: Step) -> sqlite3.Error | None:
    try:
        step()
    except sqlite3.Error as problem:
        return problem
    return None


def _close_unused(opening: asyncio.Future[tuple[sqlite3.Connection, Path | None]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
