"""Runs functions on PostgreSQL connections, each in a thread: reads, and writes that are rare.

A function that writes is a serializable transaction: what it has read is still true when it
commits, or it is run again. What a run does all the time are steps instead.

If the connection is lost during a commit, a new one asks for the status of the transaction;
`CommitUnknown` is raised only if the server stays unreachable.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from evoclaw.store.databases.database import CommitUnknown, StoreUnavailable, Work
from evoclaw.store.databases.postgres_connection import (
    PostgresConnection,
    PostgresServer,
    is_connection_lost,
    translate_error,
)

T = TypeVar("T")

MAX_CONNECTIONS = 4
"""Connections, and threads, for functions."""
CONFLICT_TIMEOUT_S = 15.0
"""Seconds for which a write is repeated because others change what it reads."""
MAX_CONFLICT_DELAY_S = 0.05
MAX_RECONNECT_DELAY_S = 0.5
BEGIN = (
    b"BEGIN ISOLATION LEVEL SERIALIZABLE; "
    b"SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::text"
)
CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)


class _LostDuringCommit(Exception):
    """The connection was lost after COMMIT was sent."""

    def __init__(self, transaction: str, result: Any) -> None:
        super().__init__(transaction)
        self.transaction, self.result = transaction, result


class FunctionRunner:
    """A few connections, each used by one thread at a time."""

    def __init__(
        self,
        server: PostgresServer,
        reconnect_timeout_s: float,
        on_clock: Callable[[float], None],
    ) -> None:
        """Connect when the first function comes.

        Args:
            server: The server.
            reconnect_timeout_s: Seconds that the server may be unreachable before a function fails.
            on_clock: Called with the time of the server.
        """
        self.commits, self.busy_s = 0, 0.0
        self.threads = ThreadPoolExecutor(MAX_CONNECTIONS, f"store {server.name}")
        self._server, self._timeout_s, self._on_clock = server, reconnect_timeout_s, on_clock
        self._lock = threading.Lock()
        self._free: dict[bool, list[PostgresConnection]] = {False: [], True: []}
        """Connections that no thread uses: those for writes, and the read-only ones."""

    def adopt(self, connection: psycopg.Connection) -> None:
        """Use an open connection for writes."""
        self._free[False].append(PostgresConnection(connection))

    def read(self, work: Work[T]) -> T:
        """Run a function that only reads, outside any transaction."""
        return self._with_reconnect(work, read_only=True)

    def write(self, work: Work[T]) -> T:
        """Run a function in a transaction; when this returns, it is committed."""
        end = time.monotonic() + CONFLICT_TIMEOUT_S
        pause = 0.001
        while True:
            try:
                return self._with_reconnect(lambda c: self._transaction(c, work), read_only=False)
            except CONFLICTS as problem:
                if time.monotonic() >= end:
                    raise StoreUnavailable(
                        f"{self._server.name}: other transactions keep changing what this "
                        "write reads"
                    ) from problem
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, MAX_CONFLICT_DELAY_S)

    def close(self) -> None:
        """Close all connections; no function runs any more."""
        self.threads.shutdown(wait=True)
        for connection in [*self._free[False], *self._free[True]]:
            connection.raw.close()

    def _transaction(self, connection: PostgresConnection, work: Work[T]) -> T:
        raw = connection.raw
        cursor = raw.execute(BEGIN)
        while cursor.nextset():
            pass
        number, now = cursor.fetchone() or ("", "0")
        self._on_clock(float(now))
        result = work(connection)
        try:
            ended = raw.execute(b"COMMIT")
        except psycopg.Error as problem:
            if is_connection_lost(problem, raw):
                raise _LostDuringCommit(number, result) from problem
            raise
        if ended.statusmessage != "COMMIT":
            raise psycopg.InternalError("rolled back: a request caught a database error of its own")
        with self._lock:
            self.commits += 1
        return result

    def _with_reconnect(self, step: Callable[[PostgresConnection], T], *, read_only: bool) -> T:
        """Run a step; repeat it if the connection is lost and restored in time."""
        end, pause = 0.0, 0.02
        unknown: _LostDuringCommit | None = None
        while True:
            problem: BaseException
            try:
                if unknown is not None and self._was_committed(unknown.transaction):
                    return unknown.result
                unknown = None
                return self._use(step, read_only=read_only)
            except _LostDuringCommit as lost:
                unknown = problem = lost
            except psycopg.Error as lost:
                if isinstance(lost, CONFLICTS) or not isinstance(lost, _LostConnection):
                    raise
                problem = lost
            # Counted from here: this process itself may have been stopped for longer.
            end = end or time.monotonic() + self._timeout_s
            if time.monotonic() + pause > end:
                if unknown is not None:
                    raise CommitUnknown(self._server.name) from problem
                raise problem
            time.sleep(pause)
            pause = min(2 * pause, MAX_RECONNECT_DELAY_S)

    def _use(self, step: Callable[[PostgresConnection], T], *, read_only: bool) -> T:
        """Run a step on a free connection."""
        started = time.monotonic()
        connection = self._take(read_only=read_only)
        try:
            result = step(connection)
        except BaseException as problem:
            self._after_error(connection, problem, read_only=read_only)
            raise
        finally:
            with self._lock:
                self.busy_s += time.monotonic() - started
        with self._lock:
            self._free[read_only].append(connection)
        return result

    def _after_error(
        self, connection: PostgresConnection, problem: BaseException, *, read_only: bool
    ) -> None:
        """Keep a connection that is still good."""
        raw = connection.raw
        lost = raw.closed or (
            isinstance(problem, psycopg.Error) and is_connection_lost(problem, raw)
        )
        if not lost:
            with suppress(psycopg.Error):
                if raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    raw.execute(b"ROLLBACK")
                with self._lock:
                    self._free[read_only].append(connection)
                return
        raw.close()
        if isinstance(problem, psycopg.Error):
            raise _LostConnection(str(problem)) from problem

    def _take(self, *, read_only: bool) -> PostgresConnection:
        with self._lock:
            free = self._free[read_only]
            if free:
                return free.pop()
        try:
            return PostgresConnection(self._server.connect(read_only=read_only))
        except psycopg.OperationalError as problem:
            if isinstance(translate_error(problem, self._server.name), StoreUnavailable):
                raise _LostConnection(str(problem)) from problem
            raise

    def _was_committed(self, transaction: str) -> bool:
        """Whether a transaction was committed, once it has ended."""

        def status(connection: PostgresConnection) -> str:
            find = "SELECT pg_xact_status(?::xid8)"
            return connection.execute(find, (transaction,)).fetchone()[0]

        while True:
            try:
                found = self._use(status, read_only=True)
            except errors.InvalidParameterValue:
                return False  # the server was restored from an earlier state
            if found != "in progress":
                return found == "committed"
            time.sleep(0.02)


class _LostConnection(psycopg.OperationalError):
    """The connection was lost before the work was done."""
