"""What both databases share towards those who ask: a queue of orders, and one thread that waits."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, Self, TypeVar

from evoclaw.store.databases.database import StoreError, Work
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.orders import Order

T = TypeVar("T")


class Writer(Protocol):
    """Does orders, in batches."""

    commits: int
    """How many batches were committed."""

    @property
    def broken(self) -> BaseException | None:
        """Why nothing can be written any more."""
        ...

    def take(self, order: Order) -> None:
        """Do something when its turn comes."""
        ...

    def close(self) -> None:
        """Finish what was asked for, then end."""
        ...

    def run(self, ended: asyncio.Event) -> None:
        """Be the thread."""
        ...


class Threaded:
    """A database whose thread ends when it is closed, or forgotten by all."""

    def __init__(
        self, name: str, thread: str, writer: Writer, notices: Notices | None = None
    ) -> None:
        """Begin.

        Args:
            name: Of the database, for people.
            thread: Of the thread.
            writer: Does what is asked for.
            notices: Those of the writer, if it sends any.
        """
        self.name, self.notices = name, notices or Notices()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._writer = writer
        # The thread knows the writer only, so that a database forgotten by all ends its thread.
        self._stop = weakref.finalize(self, writer.close)
        self._thread = threading.Thread(
            target=writer.run, args=(self._ended,), name=f"store {thread}"
        )
        self._thread.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many batches were committed."""
        return self._writer.commits

    async def write(self, work: Work[T], *, wait: bool = True, tells: Sequence[Notice] = ()) -> T:
        """Run something in a transaction; see `Database.write`."""
        sent = self.notices.sent(tells) if tells else ()
        try:
            return await self._ask(work, writes=True, wait=wait, tells=sent)
        finally:
            if tells:
                self.notices.tell(tells)

    async def announce(self, tells: Sequence[Notice]) -> None:
        """Tell without writing anything; see `Database.announce`."""
        self.notices.tell(tells)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Hear what others write; see `Database.listening`."""
        yield

    async def read(self, work: Work[T]) -> T:
        """Run something that only reads; it sees every write that returned before."""
        return await self._ask(work, writes=False)

    def _ask(
        self, work: Work[T], *, writes: bool, wait: bool = True, tells: Sequence[Notice] = ()
    ) -> asyncio.Future[T]:
        if not self._stop.alive:
            raise StoreError(f"{self.name} is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._writer.take(Order(work, answer, writes=writes, wait=wait, tells=tells))
        return answer

    async def close(self) -> None:
        """Finish what was asked for, close the database, end the thread."""
        first = self._stop.alive
        self._stop()
        await self._ended.wait()
        self._thread.join()
        if first and self._writer.broken is not None:
            raise self._writer.broken
