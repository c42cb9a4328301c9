"""A PostgreSQL database: worker threads with blocking connections; callers share commits.

The functions that run in transactions are synchronous, so the connection is, too, and a thread
waits for the server. Requests that arrive meanwhile share the next transaction. Reads that may be
stale have their own thread and connection, so that neither waits for the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import psycopg

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import Dialect
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.postgres_connection import PostgresServer, translate_error
from evoclaw.store.databases.postgres_listener import listen
from evoclaw.store.databases.postgres_worker import PostgresWorker
from evoclaw.store.databases.sqlite_file import UNAVAILABLE_TIMEOUT_S
from evoclaw.store.databases.threaded_database import ThreadedDatabase


class PostgresDatabase(ThreadedDatabase):
    """One schema of a PostgreSQL database, and the worker threads of its connections.

    A write raises `CommitUnknown` if it is unknown whether it was committed.
    """

    def __init__(
        self,
        server: PostgresServer,
        connection: psycopg.Connection,
        reconnect_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> None:
        """Take over an open connection; see `open`."""
        self.dialect: Dialect = "postgres"
        self._server, notices = server, Notices()
        loop = asyncio.get_running_loop()
        self._clock_source = writer = PostgresWorker(
            server, connection, loop, reconnect_timeout_s, notices.sender
        )
        reader = PostgresWorker(server, None, loop, reconnect_timeout_s, notices.sender)
        super().__init__(server.name, server.name, writer, notices, reader)

    @classmethod
    async def open(
        cls,
        server: PostgresServer,
        migrate: Callable[[psycopg.Connection], None],
        *,
        reconnect_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> PostgresDatabase:
        """Connect to the server and migrate its schemas.

        Args:
            server: The server.
            migrate: Creates and migrates the tables.
            reconnect_timeout_s: Seconds that the server may be unreachable before requests fail.
        """
        server.validate()
        opening = asyncio.get_running_loop().run_in_executor(None, _connect, server, migrate)
        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        return cls(server, connection, reconnect_timeout_s)

    def time(self) -> float:
        """Unix seconds by the server's clock, as of the last transaction."""
        return self._clock_source.clock_offset_s + time.monotonic()

    @property
    def server(self) -> PostgresServer:
        """The server, for callers that need a connection of their own."""
        return self._server

    async def announce(self, notices: Sequence[Notice]) -> None:
        """Send notices with the next commit, or a moment later."""
        await self.write(lambda connection: None, wait=False, notices=notices)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Receive the notices of other processes until the block ends."""
        task = asyncio.create_task(listen(self._server, self.notices), name="notices")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


def _connect(
    server: PostgresServer, migrate: Callable[[psycopg.Connection], None]
) -> psycopg.Connection:
    try:
        connection = server.connect()
    except psycopg.Error as problem:
        raise ConfigError(
            f"cannot connect to {server.name}: {' '.join(str(problem).split())}; "
            "start the server, or check [store] in evoclaw.toml"
        ) from None
    try:
        migrate(connection)
    except BaseException as problem:
        connection.close()
        if isinstance(problem, psycopg.Error):
            raise translate_error(problem, server.name) from problem
        raise
    return connection


def _close_unused(opening: asyncio.Future[psycopg.Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
