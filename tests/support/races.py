"""Two processes at one PostgreSQL, stopped at chosen points: one waits while the other commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec

from evoclaw.store.databases.database import Connection, Database, QueryResult, Work
from evoclaw.store.databases.notices import Notice
from evoclaw.store.databases.postgres_connection import PostgresConnection, PostgresServer
from evoclaw.store.databases.steps import Step
from tests.support.databases import Place

T = TypeVar("T")
TIMEOUT_S = 10.0
_FIND_FUNCTION = """
SELECT proname FROM pg_proc
WHERE proname ~ ? AND pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = ?)
"""


class OtherProcess:
    """A process with an open transaction, which it commits when it is told to."""

    def __init__(self, place: Place) -> None:
        server = PostgresServer(str(place.at), place.schema, "", False)
        self._schema, self._raw = place.schema, server.connect()
        self._raw.execute(b"SET idle_in_transaction_session_timeout = 0")
        self.connection: Connection = PostgresConnection(self._raw)

    async def begin(self) -> None:
        """Begin a transaction like that of a batch of steps."""
        await asyncio.to_thread(self._raw.execute, b"BEGIN ISOLATION LEVEL READ COMMITTED")

    async def run(self, work: Work[T]) -> T:
        """Run a function in the transaction."""
        return await asyncio.to_thread(work, self.connection)

    async def execute(self, statement: str, *values: Any) -> None:
        """Run a statement in the transaction."""
        await self.run(lambda c: c.execute(statement, values))

    async def apply(self, step: Step) -> Any:
        """Run a step in the transaction, with its lock."""

        def work(connection: Connection) -> Any:
            if step.lock:
                take = "SELECT pg_advisory_xact_lock(hashtextextended('evoclaw ' || ?, 0))"
                connection.execute(take, (step.lock,))
            pattern = f"^step_{step.procedure.name}_[0-9a-f]{{12}}$"
            names = connection.execute(_FIND_FUNCTION, (pattern, self._schema)).fetchall()
            call = f"SELECT {names[0][0]}(?::jsonb)::text"
            values = (msgspec.json.encode(step.values()).decode(),)
            (found,) = connection.execute(call, values).fetchone()
            return None if found is None else msgspec.json.decode(found)

        return await self.run(work)

    async def commit(self) -> None:
        """Commit the transaction."""
        await asyncio.to_thread(self._raw.execute, b"COMMIT")

    async def commit_when_blocking(self, task: asyncio.Task[T]) -> T:
        """Commit as soon as the other process waits for this one; what the other one returned."""
        blocked = (
            "SELECT 1 FROM pg_locks "
            "WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        )
        async with asyncio.timeout(TIMEOUT_S):
            while not await self.run(lambda c: c.execute(blocked).fetchall()):
                assert not task.done(), f"nothing waited: {task}"
                await asyncio.sleep(0.005)
            await self.commit()
            return await task

    def close(self) -> None:
        """Roll back what is not committed."""
        self._raw.close()


@asynccontextmanager
async def other_process(place: Place) -> AsyncGenerator[OtherProcess]:
    """Another process, in a transaction."""
    other = OtherProcess(place)
    try:
        await other.begin()
        yield other
    finally:
        other.close()


class PausingDatabase:
    """A database whose functions stop once before a certain statement, in their transaction."""

    def __init__(self, inner: Database, before: str) -> None:
        self._inner, self.before = inner, before
        self.attempts = 0
        """How often functions were run."""
        self.reached, self.resumed = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def as_database(self) -> Database:
        """Itself, with its type."""
        return cast("Database", self)

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        """Run a function that stops before the statement."""

        def pausing(connection: Connection) -> T:
            self.attempts += 1
            return work(_PausingConnection(connection, self))

        return await self._inner.write(pausing, wait=wait, notices=notices)

    async def wait_until_reached(self) -> None:
        """Wait until a function has come to the statement."""
        assert await asyncio.to_thread(self.reached.wait, TIMEOUT_S), "it was not reached"

    async def resume_when_blocking(self, task: asyncio.Task[Any]) -> None:
        """Let the function go on as soon as another transaction waits."""
        find = "SELECT 1 FROM pg_locks WHERE NOT granted"
        async with asyncio.timeout(TIMEOUT_S):
            while not await self._inner.read(
                lambda c: c.execute(find).fetchall(), allow_stale=True
            ):
                assert not task.done(), f"nothing waited: {task}"
                await asyncio.sleep(0.005)
        self.resumed.set()

    def pause(self, statement: str) -> None:
        """Stop the thread of a function, once."""
        if self.before in statement and not self.reached.is_set():
            self.reached.set()
            assert self.resumed.wait(TIMEOUT_S)


class _PausingConnection:
    def __init__(self, inner: Connection, pauses: PausingDatabase) -> None:
        self._inner, self._pauses = inner, pauses

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> QueryResult:
        self._pauses.pause(statement)
        return self._inner.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> QueryResult:
        self._pauses.pause(statement)
        return self._inner.executemany(statement, rows)
