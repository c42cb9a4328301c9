"""The part of a database that SQLite and PostgreSQL share: request queues and worker threads."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self, TypeVar

from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import StoreError, Work
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.write_requests import WriteRequest

T = TypeVar("T")


class DatabaseWorker(Protocol):
    """Executes requests in batches, in a thread."""

    commits: int
    """How many batches were committed."""
    busy_s: float
    """Seconds spent executing."""

    @property
    def broken(self) -> BaseException | None:
        """Why nothing can be written any more."""
        ...

    def submit(self, request: WriteRequest) -> None:
        """Queue a request."""
        ...

    def close(self) -> None:
        """Finish all requests, then end."""
        ...

    def run(self, ended: asyncio.Event) -> None:
        """The main function of the thread."""
        ...


class ThreadedDatabase:
    """A database whose threads end when it is closed or garbage-collected."""

    def __init__(
        self,
        name: str,
        thread: str,
        writer: DatabaseWorker,
        notices: Notices | None = None,
        reader: DatabaseWorker | None = None,
    ) -> None:
        """Start the threads.

        Args:
            name: The name of the database, for messages.
            thread: The name of the thread.
            writer: Executes all requests but stale reads.
            notices: Those of the writer, if it sends any.
            reader: Executes reads that may be stale, in its own thread; without, the writer does.
        """
        self.name, self.notices = name, notices or Notices()
        self.cipher = BlobCipher()
        """Encrypts what runs hold; set by the process that has a key."""
        self._loop = asyncio.get_running_loop()
        self._writer, self._reader = writer, reader or writer
        # A thread refers only to its worker: the database can be garbage-collected and end it.
        self._threads = [_WorkerThread(writer, f"store {thread}")]
        if reader is not None:
            self._threads.append(_WorkerThread(reader, f"store reader {thread}"))
        self._stop = weakref.finalize(self, _close_all, self._threads)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many batches were committed."""
        return self._writer.commits

    @property
    def busy_s(self) -> float:
        """Seconds spent executing; stale reads are not counted."""
        return self._writer.busy_s

    def time(self) -> float:
        """Unix seconds by the clock of this machine."""
        return time.time()

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        """Run a function in a transaction; see `Database.write`."""
        sent = self.notices.outgoing(notices) if notices else ()
        try:
            request = WriteRequest(work, self._new_future(), writes=True, wait=wait, notices=sent)
            self._writer.submit(request)
            return await request.future
        finally:
            if notices:
                self.notices.deliver(notices)

    async def flush(self) -> None:
        """Wait until every earlier write is committed: an empty write comes after them."""
        await self.write(lambda connection: None)

    async def announce(self, notices: Sequence[Notice]) -> None:
        """Send notices without writing anything; see `Database.announce`."""
        self.notices.deliver(notices)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Receive the notices of other processes; see `Database.listening`."""
        yield

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        """Run a function that only reads; see `Database.read`."""
        request = WriteRequest(work, self._new_future(), writes=False)
        (self._reader if allow_stale else self._writer).submit(request)
        return await request.future

    def _new_future(self) -> asyncio.Future[Any]:
        if not self._stop.alive:
            raise StoreError(f"{self.name} is closed")
        return self._loop.create_future()

    async def close(self) -> None:
        """Finish all requests, close the database, end the threads."""
        first = self._stop.alive
        self._stop()
        for thread in self._threads:
            await thread.join()
        if first and self._writer.broken is not None:
            raise self._writer.broken


class _WorkerThread:
    """The thread of a worker."""

    def __init__(self, worker: DatabaseWorker, name: str) -> None:
        self.close = worker.close
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=worker.run, args=(self._ended,), name=name)
        self._thread.start()

    async def join(self) -> None:
        """Wait until the thread has ended."""
        await self._ended.wait()
        self._thread.join()


def _close_all(threads: Sequence[_WorkerThread]) -> None:
    for thread in threads:
        thread.close()
