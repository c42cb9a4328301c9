"""SQLite whose commits are waited for in a thread: callers share them, and what returned is kept.

Statements run where they are asked for, in the event loop's thread: they touch memory, and take
less time than handing them to another thread and back would. Only the commit waits for the disk,
and only that is the thread's.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from evoclaw.store.opening import (
    PATIENCE,
    DamagedStore,
    Schema,
    StoreError,
    StoreFull,
    explained,
    open_file,
    sealed,
    unsealed,
)

__all__ = [
    "DamagedStore",
    "Database",
    "Schema",
    "StoreError",
    "StoreFull",
    "Work",
    "sealed",
    "unsealed",
]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""Runs inside a transaction: uses the connection, and nothing else, as it may be undone and run
again. It never commits, and is quick: nothing else goes on meanwhile."""

Step = Callable[[], None]
Then = Callable[[sqlite3.Error | None], None]

LARGEST_BATCH = 256
"""Writes that share one commit; more of them would make the first wait for the last."""


class Database:
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
        self.set_aside = set_aside
        """Where a damaged file was moved to. Whoever opened it must tell."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._writer = _Writer(path, connection, self._loop, durable)
        # The thread knows the writer only, so that a database forgotten by all ends its thread.
        self._stop = weakref.finalize(self, self._writer.close)
        self._thread = threading.Thread(
            target=self._writer.run, args=(self._ended,), name=f"store {path.name}"
        )
        self._thread.start()

    @classmethod
    async def open(
        cls, path: Path, schema: Schema, *, durable: bool = True, set_aside: bool = False
    ) -> Database:
        """Open or create a file; look through all of it first.

        Args:
            path: Of the file; its folder is made.
            schema: What it holds.
            durable: Whether a write is on the disk when it returns, not just with the system.
            set_aside: Whether a damaged file is moved away and a new one begun, instead of
                raising `DamagedStore`.
        """
        opening = asyncio.get_running_loop().run_in_executor(
            None, open_file, path, schema, durable, set_aside
        )
        try:
            connection, aside = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        return cls(path, connection, aside, durable=durable)

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many batches were committed."""
        return self._writer.commits

    async def write(self, work: Work[T]) -> T:
        """Run something in a transaction; when this returns, it is committed.

        A caller who is cancelled does not know whether it was done.
        """
        return await self._ask(work, writes=True)

    async def read(self, work: Work[T]) -> T:
        """Run something that only reads; it sees every write that returned before."""
        return await self._ask(work, writes=False)

    def _ask(self, work: Work[T], *, writes: bool) -> asyncio.Future[T]:
        if not self._stop.alive:
            raise StoreError(f"{self.path} is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._writer.take(_Job(work, answer, writes))
        return answer

    async def close(self) -> None:
        """Finish what was asked for, close the file, end the thread."""
        self._stop()
        await self._ended.wait()
        self._thread.join()


class _Job:
    """One thing to do, and who waits for it."""

    __slots__ = ("answer", "problem", "result", "work", "writes")

    def __init__(self, work: Work[Any], answer: asyncio.Future[Any], writes: bool) -> None:
        self.work, self.answer, self.writes = work, answer, writes
        self.result: Any = None
        self.problem: BaseException | None = None

    def attempt(self, connection: sqlite3.Connection) -> None:
        self.problem = None
        try:
            self.result = self.work(connection)
        except BaseException as problem:
            # Handed to the one who asked; the others of its batch must not suffer for it.
            self.problem = problem

    def resolve(self, path: Path) -> None:
        if self.answer.done():
            return
        if self.problem is None:
            self.answer.set_result(self.result)
        elif isinstance(self.problem, StopIteration):
            self.answer.set_exception(RuntimeError("work raised StopIteration"))
        elif isinstance(self.problem, sqlite3.Error):
            self.answer.set_exception(explained(self.problem, path))
        else:
            self.answer.set_exception(self.problem)


class _Writer:
    """Does jobs in batches; one step at a time is with the thread, which says when it is over."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        durable: bool,
    ) -> None:
        self.commits = 0
        self._path, self._connection, self._loop = path, connection, loop
        self._durable = durable
        self._waiting: deque[_Job] = deque()
        self._away = self._closing = False
        self._steps: SimpleQueue[tuple[Step, Then] | None] = SimpleQueue()

    def take(self, job: _Job) -> None:
        """Do something now, or when the disk is done with what was before."""
        self._waiting.append(job)
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
        while self._waiting and not self._away:
            some = range(min(len(self._waiting), LARGEST_BATCH))
            jobs = [self._waiting.popleft() for _ in some]
            for job in jobs:
                if not job.writes:
                    job.attempt(self._connection)
                    job.resolve(self._path)
            if writes := [job for job in jobs if job.writes]:
                self._write(writes)
        if self._closing and not self._away:
            self._steps.put(None)

    def _write(self, jobs: list[_Job], *, marks: bool = False) -> None:
        def then(problem: sqlite3.Error | None) -> None:
            self._begun(jobs, marks, problem)

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

    def _begun(self, jobs: list[_Job], marks: bool, problem: sqlite3.Error | None) -> None:
        """Do everything of a batch; then have it committed."""

        def then(problem: sqlite3.Error | None) -> None:
            self._committed(jobs, problem)

        if problem is not None:
            return then(problem)
        try:
            done = self._attempt(jobs, marks)
        except sqlite3.Error as problem:
            return then(problem)
        if not done and len(jobs) > 1:
            # A mark before each write, to undo that one alone, would cost a quarter of it. Few
            # fail: when one does, the batch is undone and done again with marks.
            return self._write(jobs, marks=True)
        if self._durable and done:
            return self._hand_over(self._commit, then)
        return then(_problem_of(self._commit) if done else None)

    def _attempt(self, jobs: list[_Job], marks: bool) -> bool:
        """Do all of it in the transaction; False if it had to be undone."""
        execute = self._connection.execute
        for job in jobs:
            if marks:
                execute("SAVEPOINT one")
            job.attempt(self._connection)
            if not self._connection.in_transaction:
                # Some failures, as a full disk, undo everything.
                cause = job.problem
                raise cause if isinstance(cause, sqlite3.Error) else sqlite3.Error("undone")
            if job.problem is not None and not marks:
                execute("ROLLBACK")
                return False
            if job.problem is not None:
                execute("ROLLBACK TO one")
            if marks:
                execute("RELEASE one")
        return True

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        self.commits += 1

    def _committed(self, jobs: list[_Job], problem: sqlite3.Error | None) -> None:
        """Tell those who wait for a batch."""
        if problem is not None:
            # If even this fails, the next batch cannot begin, fails, and tries it again.
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        for job in jobs:
            if job.problem is None:
                job.problem = problem
            job.resolve(self._path)

    def _hand_over(self, step: Step, then: Then) -> None:
        """Have the thread do what may take its time; nothing else is done meanwhile."""
        self._away = True
        self._steps.put((step, then))

    def _back(self, then: Then, problem: sqlite3.Error | None) -> None:
        self._away = False
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
