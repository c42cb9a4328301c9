"""A SQLite database: statements run in the event loop, commits in a thread that callers share."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import (
    Connection,
    DamagedStore,
    Dialect,
    Schema,
    StoreError,
    StoreFull,
    Work,
    add_checksum,
    verify_checksum,
)
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.sqlite_file import SingleSchemaFormat, SqliteFileFormat, open_file
from evoclaw.store.databases.sqlite_worker import SqliteWorker
from evoclaw.store.databases.steps import OnFailure, OnResult, Step
from evoclaw.store.databases.write_requests import (
    DeferredResult,
    WriteRequest,
    WriteScope,
    scope_of_next_write,
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

T = TypeVar("T")


class SqliteDatabase:
    """One file, and one thread that waits for its disk.

    All requests that arrive during a commit share the next one, so the disk is waited for once per
    batch, not once per write. The thread ends when the database is closed or garbage-collected.
    """

    dialect: Dialect = "sqlite"

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        set_aside: Path | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """Take over an open connection; see `open`."""
        self.path, self.name, self.notices = path, str(path), Notices()
        self.set_aside = set_aside
        """Where a damaged file was moved to; the caller must report that."""
        self.cipher = BlobCipher()
        """Encrypts what runs hold; set by the process that has a key."""
        self._loop = asyncio.get_running_loop()
        self._no_scope = WriteScope()
        """The scope of deferred steps outside any other."""
        self._shared: dict[str, WriteRequest | None] = {}
        """Procedures with a shared step that was not executed yet: others join it. They are sent
        with the next request, or in the next iteration of the event loop."""
        self._worker = SqliteWorker(path, connection, self._loop, durable)
        self._ended = asyncio.Event()
        # The thread refers only to its worker: the database can be garbage-collected and end it.
        self._thread = threading.Thread(
            target=self._worker.run, args=(self._ended,), name=f"store {path.name}"
        )
        self._thread.start()
        self._stop = weakref.finalize(self, self._worker.close)

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many batches were committed."""
        return self._worker.commits

    @property
    def busy_s(self) -> float:
        """Seconds spent executing."""
        return self._worker.busy_s

    def time(self) -> float:
        """Unix seconds by the clock of this machine."""
        return time.time()

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        """Run a function in a transaction; see `Database.write`."""
        return await self._write(work, wait=wait, notices=notices)

    async def _write(
        self,
        work: Work[T],
        *,
        wait: bool = True,
        notices: Sequence[Notice] = (),
        changes_once: bool = False,
    ) -> T:
        try:
            scope, future = scope_of_next_write(), self._new_future()
            request = WriteRequest(
                work, future, writes=True, wait=wait, scope=scope, changes_once=changes_once
            )
            self._submit(request)
            result = await future
            if wait and scope is not None and scope.problem is not None:
                raise scope.problem  # an earlier step of the same commit was refused
            return result
        finally:
            self.notices.deliver(notices)

    def write_at_once(self, work: Work[T]) -> tuple[bool, T | None]:
        """Run a write and commit it without a request, if the file need not be durable.

        Returns whether it was possible, and the result; if not, nothing is written: use `write`.
        """
        return self._worker.commit_at_once(work)

    async def apply(self, step: Step, *, notices: Sequence[Notice] = ()) -> Any:
        """Run a step; see `Database.apply`."""
        once = step.procedure.changes_once
        return await self._write(self._step_work(step), notices=notices, changes_once=once)

    def defer(
        self,
        step: Step,
        *,
        notices: Sequence[Notice] = (),
        on_result: OnResult | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Run a step later; see `Database.defer`."""
        self._check_open()
        scope, name = None if step.is_shared else scope_of_next_write(), step.procedure.name
        if step.is_shared and name in self._shared:
            return
        result = DeferredResult(scope or self._no_scope, on_result, on_failure)
        request = WriteRequest(
            self._step_work(step),
            result,
            writes=True,
            wait=False,
            scope=scope,
            changes_once=step.procedure.changes_once,
        )
        if step.is_shared:
            self._shared[name] = request
            self._loop.call_soon(self._send_shared)
        else:
            self._submit(request)
        self.notices.deliver(notices)

    def _submit(self, request: WriteRequest) -> None:
        self._send_shared()
        self._worker.submit(request)

    def _send_shared(self) -> None:
        for name, request in list(self._shared.items()):
            if request is not None:
                self._shared[name] = None
                self._worker.submit(request)

    def _step_work(self, step: Step) -> Work[Any]:
        run, values = step.procedure.sqlite, list[Any]()

        def work(connection: Connection) -> Any:
            # Once: it may be repeated.
            if not values:
                if step.is_shared:
                    self._shared.pop(step.procedure.name, None)
                values[:] = step.values()
            return run(connection, *values)

        return work

    async def flush(self) -> None:
        """Wait until every earlier write is committed: an empty write comes after them."""
        self._check_open()
        scope = scope_of_next_write() or self._no_scope
        self._send_shared()
        if not self._worker.is_idle:
            future = self._loop.create_future()
            self._worker.submit(WriteRequest(None, future, writes=True, scope=None))
            await future
        if scope.problem is not None and scope is not self._no_scope:
            raise scope.problem
        if (problem := self._no_scope.problem) is not None:
            self._no_scope = WriteScope()
            raise problem

    async def announce(self, notices: Sequence[Notice]) -> None:
        """Send notices without writing anything; see `Database.announce`."""
        self.notices.deliver(notices)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Receive the notices of other processes; see `Database.listening`."""
        yield

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        """Run a function that only reads; see `Database.read`."""
        scope, future = scope_of_next_write(), self._new_future()
        self._submit(WriteRequest(work, future, writes=False, scope=scope))
        return await future

    def _new_future(self) -> asyncio.Future[Any]:
        self._check_open()
        return self._loop.create_future()

    def _check_open(self) -> None:
        if not self._stop.alive:
            raise StoreError(f"{self.name} is closed")

    async def close(self) -> None:
        """Finish all requests, close the database, end the thread."""
        first = self._stop.alive
        if first:
            self._send_shared()
        self._stop()
        await self._ended.wait()
        self._thread.join()
        if first and self._worker.broken is not None:
            raise self._worker.broken


def _close_unused(opening: asyncio.Future[tuple[sqlite3.Connection, Path | None]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
