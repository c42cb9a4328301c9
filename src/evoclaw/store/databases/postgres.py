"""A PostgreSQL database: steps on one async connection, functions in threads, notices on a third.

A process that writes a step never waits for another process, but for the rows that both change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar

import psycopg

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import Dialect, StoreError, Work
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.postgres_connection import PostgresServer, translate_error
from evoclaw.store.databases.postgres_functions import FunctionRunner
from evoclaw.store.databases.postgres_listener import NoticeSender, listen
from evoclaw.store.databases.postgres_steps import StepSender
from evoclaw.store.databases.sqlite_file import UNAVAILABLE_TIMEOUT_S
from evoclaw.store.databases.steps import OnFailure, OnResult, Step
from evoclaw.store.databases.write_requests import (
    DeferredResult,
    WriteScope,
    current_write_scope,
    scope_of_next_write,
)

T = TypeVar("T")


class PostgresDatabase:
    """One schema of a PostgreSQL database.

    A write raises `CommitUnknown` if it is unknown whether it was committed.
    """

    dialect: Dialect = "postgres"

    def __init__(
        self,
        server: PostgresServer,
        connection: psycopg.Connection,
        functions: str,
        reconnect_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> None:
        """Take over an open connection; see `open`."""
        self.name, self.server, self.notices = server.name, server, Notices()
        self.cipher = BlobCipher()
        """Encrypts what runs hold; set by the process that has a key."""
        self._clock_offset_s = time.time() - time.monotonic()
        self._steps = StepSender(server, functions, reconnect_timeout_s, self._set_clock)
        self._functions = FunctionRunner(server, reconnect_timeout_s, self._set_clock)
        self._functions.adopt(connection)
        self._notice_sender = NoticeSender(server, self.notices)
        self._function_turn = asyncio.Lock()
        """Functions that write would only disturb each other."""
        self._no_scope = WriteScope()
        """The scope of deferred steps outside any other."""
        self._closed = False

    @classmethod
    async def open(
        cls,
        server: PostgresServer,
        migrate: Callable[[psycopg.Connection], str],
        *,
        reconnect_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> PostgresDatabase:
        """Connect to the server and migrate its schemas.

        Args:
            server: The server.
            migrate: Creates and migrates the tables and the functions; returns the digest in the
                names of the functions.
            reconnect_timeout_s: Seconds that the server may be unreachable before requests fail.
        """
        server.validate()
        opening = asyncio.get_running_loop().run_in_executor(None, _connect, server, migrate)
        try:
            connection, functions = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        return cls(server, connection, functions, reconnect_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many transactions were committed."""
        return self._steps.commits + self._functions.commits

    @property
    def busy_s(self) -> float:
        """Seconds in which steps were under way, or functions executed."""
        return self._steps.busy_s + self._functions.busy_s

    def time(self) -> float:
        """Unix seconds by the server's clock, as of the last transaction."""
        return self._clock_offset_s + time.monotonic()

    def _set_clock(self, server_time: float) -> None:
        self._clock_offset_s = server_time - time.monotonic()

    async def apply(self, step: Step, *, notices: Sequence[Notice] = ()) -> Any:
        """Run a step; see `Database.apply`."""
        self._check_open()
        scope = scope_of_next_write()
        if scope is not None and scope.problem is not None:
            raise scope.problem
        future = asyncio.get_running_loop().create_future()
        self._steps.submit(step, future, scope)
        with self._notifying(notices):
            result = await future
        if scope is not None and scope.problem is not None:
            raise scope.problem  # an earlier step of the same commit was refused
        return result

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
        scope = current_write_scope() if step.is_shared else scope_of_next_write()
        scope = scope or self._no_scope
        sent = self.notices.outgoing(notices) if notices else ()

        def committed(result: Any) -> None:
            self._notice_sender.send(sent)
            if on_result is not None:
                on_result(result)

        result = DeferredResult(scope, committed if sent else on_result, on_failure)
        self._steps.submit(step, result, scope)
        self.notices.deliver(notices)

    async def flush(self) -> None:
        """Wait until every earlier step of this scope is committed; see `Database.flush`."""
        self._check_open()
        scope = scope_of_next_write()
        await self._steps.flush(scope)
        if scope is None:
            scope, self._no_scope = self._no_scope, WriteScope()
        if scope.problem is not None:
            raise scope.problem

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        """Run a function in a transaction; see `Database.write`. It always waits."""
        self._check_open()
        scope_of_next_write()
        if not self._steps.is_idle:
            await self._steps.flush(None)
        with self._notifying(notices):
            async with self._function_turn:
                return await self._in_thread(self._functions.write, work)

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        """Run a function that only reads; see `Database.read`."""
        self._check_open()
        if not allow_stale:
            scope_of_next_write()
        if not allow_stale and not self._steps.is_idle:
            await self._steps.flush(None)
        return await self._in_thread(self._functions.read, work)

    async def _in_thread(self, run: Callable[[Work[T]], T], work: Work[T]) -> T:
        def attempt() -> T:
            try:
                return run(work)
            except StopIteration:
                raise RuntimeError("work raised StopIteration") from None
            except psycopg.Error as problem:
                raise translate_error(problem, self.name) from problem.__cause__

        # A caller that is cancelled does not stop the function.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._functions.threads, attempt))

    @contextmanager
    def _notifying(self, notices: Sequence[Notice]) -> Generator[None]:
        """Tell this process at the end of the block in any case, others if it succeeds."""
        try:
            yield
            self._notice_sender.send(self.notices.outgoing(notices))
        finally:
            self.notices.deliver(notices)

    async def announce(self, notices: Sequence[Notice]) -> None:
        """Send notices without writing anything; see `Database.announce`."""
        with self._notifying(notices):
            pass

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Receive the notices of other processes until the block ends."""
        task = asyncio.create_task(listen(self.server, self.notices), name="notices")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.name} is closed")

    async def close(self) -> None:
        """Finish all requests, close the connections, end the threads."""
        if self._closed:
            return
        self._closed = True
        problem = await self._steps.close()
        await self._notice_sender.close()
        async with self._function_turn:
            await asyncio.get_running_loop().run_in_executor(None, self._functions.close)
        if problem is not None:
            raise problem


def _connect(
    server: PostgresServer, migrate: Callable[[psycopg.Connection], str]
) -> tuple[psycopg.Connection, str]:
    try:
        connection = server.connect()
    except psycopg.Error as problem:
        raise ConfigError(
            f"cannot connect to {server.name}: {' '.join(str(problem).split())}; "
            "start the server, or check [store] in evoclaw.toml"
        ) from None
    try:
        functions = migrate(connection)
    except BaseException as problem:
        connection.close()
        if isinstance(problem, psycopg.Error):
            raise translate_error(problem, server.name) from problem
        raise
    return connection, functions


def _close_unused(opening: asyncio.Future[tuple[psycopg.Connection, str]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
