"""SQLite whose commits are waited for in a thread: callers share them, and what returned is kept.

Statements run where they are asked for, in the event loop's thread: they touch memory, and take
less time than handing them to another thread and back would. Only the commit waits for the disk,
and only that is the thread's.

What nobody waits for stays in the open transaction until somebody does, or for a moment. If that
transaction fails, as on a full disk, it is done again before anything else is: what was promised
is kept, or whoever writes next is told.
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
"""Seconds at most before a write is committed that nobody waits for."""
AGAIN = 1.0
"""Seconds before a commit that failed, and that nobody waits for, is tried again."""


class SqliteDatabase(Threaded):
    """One file, and one thread that waits for its disk.

    Everything asked for while a commit waits for the disk goes into the next one, so the disk is
    waited for once per batch, not once per write.
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
        """Where a damaged file was moved to. Whoever opened it must tell."""
        loop = asyncio.get_running_loop()
        super().__init__(str(path), path.name, _Writer(path, connection, loop, durable))

    @classmethod
    async def open(
        cls, path: Path, holds: Schema | Form, *, durable: bool = True, set_aside: bool = False
    ) -> SqliteDatabase:
        """Open or create a file; look through all of it first.

        Args:
            path: Of the file; its folder is made.
            holds: What it holds.
            durable: Whether a write is on the disk when it returns, not just with the system.
            set_aside: Whether a damaged file is moved away and a new one begun, instead of
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
    """Does orders in batches; one step at a time is with the thread, which says when it is over."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        durable: bool,
    ) -> None:
        self.commits, self.busy_s = 0, 0.0
        self.broken: BaseException | None = None
        """Why nothing can be written any more."""
        self._path, self._connection, self._loop = path, connection, loop
        self._durable = durable
        self._waiting: deque[Order] = deque()
        self._promised: list[Order] = []
        """In the open transaction; if there is none, to be done again before anything else."""
        self._problem: BaseException | None = None
        self._due: asyncio.TimerHandle | None = None
        self._away = self._closing = False
        self._left_at = 0.0
        self._steps: SimpleQueue[tuple[Step, Then] | None] = SimpleQueue()

    def take(self, order: Order) -> None:
        """Do something now, or when the disk is done with what was before."""
        self._waiting.append(order)
        self._go_on()

    def close(self) -> None:
        """Finish what was asked for, then end."""
        self._closing = True
        self._go_on()

    def run(self, ended: asyncio.Event) -> None:
        """Be the thread."""
        while (asked := self._steps.get()) is not None:
            step, then = asked
            if not self._tell(self._back, then, _problem_of(step)):
                break
        self._connection.close()
        self._tell(ended.set)

    def _go_on(self) -> None:
        began = time.monotonic()
        while self._waiting and not self._away:
            some = range(min(len(self._waiting), LARGEST_BATCH))
            orders = [self._waiting.popleft() for _ in some]
            for order in orders:
                if not order.writes:
                    self._read(order)
            if writes := [order for order in orders if order.writes]:
                self._write(writes)
        self.busy_s += time.monotonic() - began
        if self._closing and not self._away:
            self._end()

    def _end(self) -> None:
        if self._due is not None:
            self._due.cancel()
        while self._promised and self.broken is None and not self._away:
            self._write([])
        if not self._away:
            self._steps.put(None)

    def _read(self, order: Order) -> None:
        if self._promised and not self._connection.in_transaction:
            order.problem = self._problem  # what it must see is not there
        else:
            order.attempt(self._connection)
        order.resolve(self._explained)

    def _write(self, orders: list[Order], *, marks: bool = False) -> None:
        """Do writes; without any, commit what was promised."""
        if self.broken is not None:
            self._failed(orders, self.broken)
        elif self._connection.in_transaction:
            # What was done in it before was promised, and is not undone for one that fails.
            self._do(orders, marks=True)
        else:
            self._write_anew(orders, marks=marks)

    def _write_anew(self, orders: list[Order], *, marks: bool) -> None:
        def then(problem: sqlite3.Error | None) -> None:
            if problem is None:
                self._do([*self._promised, *orders], marks=marks)
            else:
                self._failed(orders, problem)

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

    def _do(self, orders: list[Order], *, marks: bool) -> None:
        """Do everything of a batch in the open transaction."""
        new = [order for order in orders if not order.promised]
        try:
            done = attempt_all(self._connection, orders, marks=marks, alive=self._check)
            if not done:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            self._failed(new, problem)
            return
        if done:
            self._done(orders, new)
        elif len(orders) > 1:
            self._write(new, marks=True)
        else:
            self._tell_all(new)

    def _done(self, orders: list[Order], new: list[Order]) -> None:
        lost = [order.problem for order in orders if order.promised and order.problem is not None]
        if lost:
            self.broken = Broken(str(self._path), lost[0])
            self._failed(new, self.broken)
            return
        for order in new:
            if not order.wait:
                self._promise(order)
        waiting = [order for order in new if order.wait]
        if waiting or not new:
            self._finish(waiting)

    def _check(self, order: Order) -> None:
        if not self._connection.in_transaction:
            # Some failures, as a full disk, undo everything.
            cause = order.problem
            raise cause if isinstance(cause, sqlite3.Error) else sqlite3.Error("undone")

    def _promise(self, order: Order) -> None:
        """Give the result of what is committed later."""
        if order.problem is None:
            order.promised = True
            self._promised.append(order)
            self._later(LINGER)
        order.resolve(self._explained)

    def _later(self, seconds: float) -> None:
        if self._due is None and not self._closing:
            self._due = self._loop.call_later(seconds, self._commit_promised)

    def _commit_promised(self) -> None:
        self._due = None
        if self._promised and not self._away:
            self._write([])

    def _finish(self, waiting: list[Order]) -> None:
        """Have the transaction committed."""

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

    def _failed(self, orders: list[Order], problem: BaseException) -> None:
        """Undo a transaction; what it promised is done again in the next one."""
        # If even this fails, the next batch cannot begin, fails, and tries it again.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._problem = problem
        for order in orders:
            if order.problem is None:
                order.problem = problem
        self._tell_all(orders)
        if self._promised and self.broken is None:
            logger.warning("%s: not committed yet: %s", self._path, problem)
            if self._closing:
                self.broken = self._explained(problem)
            self._later(AGAIN)

    def _tell_all(self, orders: list[Order]) -> None:
        for order in orders:
            order.resolve(self._explained)

    def _explained(self, problem: BaseException) -> BaseException:
        return explained(problem, self._path) if isinstance(problem, sqlite3.Error) else problem

    def _hand_over(self, step: Step, then: Then) -> None:
        """Have the thread do what may take its time; nothing else is done meanwhile."""
        self._away, self._left_at = True, time.monotonic()
        self._steps.put((step, then))

    def _back(self, then: Then, problem: sqlite3.Error | None) -> None:
        self._away = False
        self.busy_s += time.monotonic() - self._left_at
        then(problem)
        self._go_on()

    def _tell(self, function: Callable[..., object], *arguments: object) -> bool:
        # A loop that was closed has nobody left who waits.
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
