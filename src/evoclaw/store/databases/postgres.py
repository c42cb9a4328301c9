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
from evoclaw.store.databases.listening import listen
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.opening import PATIENCE
from evoclaw.store.databases.postgres_link import Server, explained
from evoclaw.store.databases.postgres_writer import PostgresWriter
from evoclaw.store.databases.threaded import Threaded


class PostgresDatabase(Threaded):
    """One schema of a PostgreSQL database, and the worker threads of its connections.

    A write raises `CommitUnknown` if it is unknown whether it was committed.
    """

    def __init__(
        self, server: Server, connection: psycopg.Connection, patience: float = PATIENCE
    ) -> None:
        """Take over an open connection; see `open`."""
        self.dialect: Dialect = "postgres"
        self._server, notices = server, Notices()
        loop = asyncio.get_running_loop()
        self._timed = writer = PostgresWriter(server, connection, loop, patience, notices.sender)
        reader = PostgresWriter(server, None, loop, patience, notices.sender)
        super().__init__(server.name, server.name, writer, notices, reader)

    @classmethod
    async def open(
        cls,
        server: Server,
        prepare: Callable[[psycopg.Connection], None],
        *,
        patience: float = PATIENCE,
    ) -> PostgresDatabase:
        """Connect to the server and migrate its schemas.

        Args:
            server: The server.
            migrate: Creates and migrates the tables.
            reconnect_timeout_s: Seconds that the server may be unreachable before requests fail.
        """
        server.check()
        opening = asyncio.get_running_loop().run_in_executor(None, _connect, server, prepare)
        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        return cls(server, connection, patience)

    def time(self) -> float:
        """Unix seconds by the server's clock, as of the last transaction."""
        return self._timed.ahead + time.monotonic()

    @property
    def server(self) -> Server:
        """The server, for callers that need a connection of their own."""
        return self._server

    async def announce(self, tells: Sequence[Notice]) -> None:
        """Send notices with the next commit, or a moment later."""
        await self.write(lambda connection: None, wait=False, tells=tells)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Receive the notices of other processes until the block ends."""
        task = asyncio.create_task(listen(self._server, self.notices), name="notices")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


def _connect(server: Server, prepare: Callable[[psycopg.Connection], None]) -> psycopg.Connection:
    try:
        connection = server.connect()
    except psycopg.Error as problem:
        raise ConfigError(
            f"cannot connect to {server.name}: {' '.join(str(problem).split())}; "
            "start the server, or check [store] in evoclaw.toml"
        ) from None
    try:
        prepare(connection)
    except BaseException as problem:
        connection.close()
        if isinstance(problem, psycopg.Error):
            raise explained(problem, server.name) from problem
        raise
    return connection


def _close_unused(opening: asyncio.Future[psycopg.Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
