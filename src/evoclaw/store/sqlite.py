"""SQLite behind one writer thread: callers share commits, and what returned is on the disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from evoclaw.store.opening import (
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
"""Runs in the writer's thread, inside its transaction: uses the connection, and nothing else,
as it may be undone and run again. It never commits."""

LARGEST_BATCH = 256
"""Writes that share one commit; more of them would make the first wait for the last."""


class Database:
    """One file, one thread that writes it.

    Everything queued while a commit waits for the disk goes into the next one, so the disk is
    waited for once per batch, not once per write.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, set_aside: Path | None = None
    ) -> None:
        """Take over an open connection; see `open`."""
        self.path = path
        self.set_aside = set_aside
        """Where a damaged file was moved to. Whoever opened it must tell."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._writer = _Writer(path, connection, self._loop, self._ended)
        # The thread knows the writer only, so that a database forgotten by all ends its thread.
        self._stop = weakref.finalize(self, self._writer.queue.put, None)
        self._thread = threading.Thread(target=self._writer.run, name=f"store {path.name}")
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
        return cls(path, connection, aside)

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
        self._writer.queue.put(_Job(work, answer, writes))
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
            # Handed to the one who asked; it must not end the thread all others wait for.
            self.problem = problem

    def resolve(self) -> None:
        if self.answer.done():
            return
        if self.problem is None:
            self.answer.set_result(self.result)
        elif isinstance(self.problem, StopIteration):
            self.answer.set_exception(RuntimeError("work raised StopIteration"))
        else:
            self.answer.set_exception(self.problem)


class _Writer:
    """What runs in the thread."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Event,
    ) -> None:
        self.queue: SimpleQueue[_Job | None] = SimpleQueue()
        self.commits = 0
        self._path, self._connection, self._loop, self._ended = path, connection, loop, ended

    def run(self) -> None:
        while jobs := self._next():
            self._write([job for job in jobs if job.writes])
            self._read([job for job in jobs if not job.writes])
        self._connection.close()
        self._tell(self._ended.set)

    def _next(self) -> list[_Job]:
        """Everything that waits; nothing if that is the end."""
        jobs: list[_Job] = []
        while not jobs or (len(jobs) < LARGEST_BATCH and not self.queue.empty()):
            job = self.queue.get()
            if job is None:
                self.queue.put(None)  # Seen again when the jobs before it are done.
                break
            jobs.append(job)
        return jobs

    def _write(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        try:
            # A mark before each write, to undo that one alone, would cost a quarter of it. Few
            # fail: when one does, the batch is undone and done again with marks.
            if not self._commit(jobs, marks=False):
                self._commit(jobs, marks=True)
        except sqlite3.Error as problem:
            self._undo()
            for job in jobs:
                if job.problem is None:
                    job.problem = explained(problem, self._path)
        self._resolve(jobs)

    def _commit(self, jobs: list[_Job], *, marks: bool) -> bool:
        """Do all of it in one transaction; False if that needs marks."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
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
                return len(jobs) == 1
            if job.problem is not None:
                execute("ROLLBACK TO one")
            if marks:
                execute("RELEASE one")
        execute("COMMIT")
        self.commits += 1
        return True

    def _undo(self) -> None:
        # If even this fails, the next batch cannot begin, fails, and tries it again.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _read(self, jobs: list[_Job]) -> None:
        for job in jobs:
            job.attempt(self._connection)
        self._resolve(jobs)

    def _resolve(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if isinstance(job.problem, sqlite3.Error):
                job.problem = explained(job.problem, self._path)
        if jobs:
            self._tell(_resolve_all, jobs)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        # A loop that was closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _resolve_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.resolve()


def _close_unused(opening: asyncio.Future[tuple[sqlite3.Connection, Path | None]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
