"""The worker thread of a PostgreSQL connection: runs requests in batches, one transaction each.

Every transaction that writes to a schema first takes an advisory lock, so that all processes write
one after the other. So a read followed by a write is as safe as on SQLite, and rows become visible
in the order of their numbers. A process that stalls inside a transaction loses the lock after
`STALLED_TRANSACTION_TIMEOUT_S`.

If the connection is lost during a commit, the worker reconnects and asks for the status of the
transaction; `CommitUnknown` is raised only if the server stays unreachable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg
from psycopg import errors
from psycopg.sql import Literal

from evoclaw.store.databases.database import CommitUnknown, StoreError
from evoclaw.store.databases.notices import encode_payloads
from evoclaw.store.databases.postgres_connection import (
    PostgresConnection,
    PostgresServer,
    is_connection_lost,
    lock_key,
    translate_error,
)
from evoclaw.store.databases.postgres_listener import notify_channel
from evoclaw.store.databases.write_requests import (
    MAX_BATCH_REQUESTS,
    DeferredCommitFailed,
    Resolution,
    WriteRequest,
    attempt_all,
    resolve_all,
)

logger = logging.getLogger(__name__)

DEFERRED_COMMIT_DELAY_S = 0.005
"""Seconds at most before a deferred commit. The process holds the write lock meanwhile, and others
wait for it."""
RESOLUTION_BATCH_DELAY_S = 0.005
"""Seconds at most that a result is held back, to wake several callers at once."""
COMMIT_RETRY_DELAY_S = 1.0
"""Seconds before a failed deferred commit is tried again."""
BEGIN_STATEMENT = (
    "BEGIN; SELECT pg_advisory_xact_lock({key}); "
    "SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::text"
)


class PostgresWorker:
    """The worker thread of one connection."""

    def __init__(
        self,
        server: PostgresServer,
        connection: psycopg.Connection | None,
        loop: asyncio.AbstractEventLoop,
        reconnect_timeout_s: float,
        sender: str,
    ) -> None:
        """Without a connection it is read-only, and connects for the first request."""
        self.commits, self.busy_s = 0, 0.0
        self.clock_offset_s = time.time() - time.monotonic()
        """The server's clock minus the local monotonic clock, in seconds, as of the last
        transaction; before the first one, by the local wall clock."""
        self.broken: StoreError | None = None
        """Why nothing can be written any more."""
        self._server, self._loop, self._reconnect_timeout_s = server, loop, reconnect_timeout_s
        self._connection: PostgresConnection | None = (
            None if connection is None else PostgresConnection(connection)
        )
        self._read_only = connection is None
        self._sender, self._channel = sender, notify_channel(server.schema)
        self._lock = lock_key(server.schema)
        self._begin_statement = BEGIN_STATEMENT.format(key=self._lock).encode()
        self._queue: SimpleQueue[WriteRequest | None] = SimpleQueue()
        self._deferred: list[WriteRequest] = []
        """Deferred commits: in the open transaction; without one, to be repeated before the next
        request."""
        self._transaction = ""
        """The id of the open transaction."""
        self._unknown_commit: tuple[str, list[WriteRequest]] | None = None
        """The id and the requests of a transaction whose COMMIT got no answer."""
        self._commit_at: float | None = None
        self._resolutions: list[Resolution] = []
        """Results that their callers do not have yet."""
        self._oldest_resolution_at = 0.0
        self._closing = False

    def submit(self, request: WriteRequest) -> None:
        """Queue a request."""
        self._queue.put(request)

    def close(self) -> None:
        """Finish all requests, then end."""
        self._queue.put(None)

    def run(self, ended: asyncio.Event) -> None:
        """The main function of the thread."""
        while not self._closing:
            requests = self._next_batch()
            started = time.monotonic()
            for request in requests:
                if not request.writes:
                    self._with_reconnect(self._read, [request])
            self._flush_resolutions()
            writes = [request for request in requests if request.writes]
            if writes or self._deferred and (self._is_commit_due() or self._closing):
                self._write(writes)
                self._flush_resolutions()
            self.busy_s += time.monotonic() - started
        if self._deferred and self.broken is None:
            self.broken = StoreError(f"{self._server.name}: the last deferred commits failed")
        if self._connection is not None:
            self._connection.raw.close()
        self._call_in_loop(ended.set)

    def _next_batch(self) -> list[WriteRequest]:
        """The next requests; none if a deferred commit is due."""
        wait = None if self._commit_at is None else max(self._commit_at - time.monotonic(), 0)
        found: list[WriteRequest | None] = []
        with suppress(Empty):
            found.append(self._queue.get(timeout=wait))
            while len(found) < MAX_BATCH_REQUESTS:
                found.append(self._queue.get_nowait())
        if None in found:
            self._closing = True
        return [request for request in found if request is not None]

    def _is_commit_due(self) -> bool:
        return self._commit_at is not None and self._commit_at <= time.monotonic()

    def _write(self, requests: list[WriteRequest]) -> None:
        self._with_reconnect(self._execute, requests)
        if self._deferred and not self._transaction:
            self._commit_at = time.monotonic() + COMMIT_RETRY_DELAY_S
        elif not self._deferred:
            self._commit_at = None

    def _with_reconnect(
        self, step: Callable[[list[WriteRequest]], None], requests: list[WriteRequest]
    ) -> None:
        """Run a step; repeat it if the connection is lost and restored in time."""
        end, pause = 0.0, 0.02
        while self.broken is None:
            left = [
                request for request in requests if not request.deferred and not request.resolved
            ]
            if requests and not left:
                return
            try:
                step(left)
                return
            except (psycopg.Error, DeferredCommitFailed) as problem:
                # Counted from here: this process itself may have been stopped for longer.
                lost, end = (
                    self._drop_transaction(problem),
                    end or time.monotonic() + self._reconnect_timeout_s,
                )
                if not lost or time.monotonic() + pause > end:
                    self._fail(left, problem)
                    return
                self._flush_resolutions()
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
        self._fail([request for request in requests if not request.deferred], self.broken)

    def _read(self, requests: list[WriteRequest]) -> None:
        (request,) = requests
        if self._deferred or self._unknown_commit:
            self._begin()
        connection = self._connect()
        if self._transaction:
            attempt_all(
                connection, requests, savepoints=True, check_transaction=self._check_connection
            )
        else:
            request.attempt(connection)
            self._check_connection(request)
        self._resolve(request)

    def _execute(self, requests: list[WriteRequest]) -> None:
        """Run writes; without any, commit the deferred ones."""
        self._begin()
        requests = [request for request in requests if not request.resolved]
        connection, marks = self._connect(), bool(self._deferred)
        if not attempt_all(
            connection, requests, savepoints=marks, check_transaction=self._check_connection
        ):
            self._roll_back()
            if len(requests) > 1:
                self._begin()
                attempt_all(
                    connection, requests, savepoints=True, check_transaction=self._check_connection
                )
        for request in requests:
            if not request.wait:
                self._defer(request)
        waiting = [request for request in requests if request.wait]
        self._flush_resolutions()
        if self._transaction and (waiting or not requests):
            self._commit(waiting)
        for request in waiting:
            self._resolve(request)

    def _begin(self) -> None:
        """Make sure that a transaction is open, with all deferred writes in it."""
        if self._transaction:
            return
        number, now = self._connect().begin(self._begin_statement, self._lock)
        self._transaction, self.clock_offset_s = str(number), float(now) - time.monotonic()
        self._resolve_unknown_commit()
        attempt_all(
            self._connect(),
            self._deferred,
            savepoints=True,
            check_transaction=self._check_connection,
        )
        self._abandon_scopes([request for request in self._deferred if request.problem is not None])

    def _abandon_scopes(self, lost: list[WriteRequest]) -> None:
        """Fail the scopes of deferred writes that could not be repeated."""
        for request in lost:
            if request.scope is None:
                self.broken = DeferredCommitFailed(
                    self._server.name, request.problem or StoreError("lost")
                )
                raise self.broken
            request.scope.lost = True
        if lost:
            self._deferred = [request for request in self._deferred if not request.scope_lost]
            self._roll_back()
            self._begin()

    def _resolve_unknown_commit(self) -> None:
        """Find out whether a transaction was committed when the connection was lost."""
        if self._unknown_commit is None:
            return
        # This process holds the lock that it held: either way, that transaction has ended.
        number, requests = self._unknown_commit
        connection = self._connect()
        connection.execute("SAVEPOINT status")
        try:
            status = connection.execute("SELECT pg_xact_status(?::xid8)", (number,)).fetchone()
            done = status[0] == "committed"
        except errors.InvalidParameterValue:
            # The server does not know the id: it was restored from an earlier state.
            connection.execute("ROLLBACK TO SAVEPOINT status")
            done = False
        connection.execute("RELEASE SAVEPOINT status")
        self._unknown_commit = None
        if done:
            self._on_committed(requests)
            for request in requests:
                self._resolve(request)

    def _commit(self, waiting: list[WriteRequest]) -> None:
        requests = [*self._deferred, *waiting]
        self._unknown_commit = (self._transaction, requests)
        raw = self._connect().raw
        try:
            cursor = raw.execute(self._commit_statement(requests))
            while cursor.nextset():
                pass
        except psycopg.Error as problem:
            if not is_connection_lost(problem, raw):
                self._unknown_commit = None  # the server answered that it did not commit
            raise
        self._transaction, self._unknown_commit = "", None
        if cursor.statusmessage != "COMMIT":
            raise psycopg.InternalError("rolled back: a request caught a database error of its own")
        self._on_committed(self._deferred)

    def _commit_statement(self, requests: list[WriteRequest]) -> bytes:
        """COMMIT together with the notices, in one message to the server."""
        notices = [
            notice for request in requests if request.problem is None for notice in request.notices
        ]
        if not notices:
            return b"COMMIT"
        raw, statements = self._connect().raw, list[bytes]()
        for payload in encode_payloads(self._sender, notices):
            quoted = Literal(payload).as_bytes(raw)
            statements.append(b"SELECT pg_notify('%s', %s)" % (self._channel.encode(), quoted))
        return b"; ".join([*statements, b"COMMIT"])

    def _on_committed(self, requests: list[WriteRequest]) -> None:
        self.commits += 1
        done = set(map(id, requests))
        self._deferred = [request for request in self._deferred if id(request) not in done]

    def _roll_back(self) -> None:
        self._connect().raw.execute(b"ROLLBACK")
        self._transaction = ""

    def _check_connection(self, request: WriteRequest) -> None:
        problem = request.problem
        if isinstance(problem, psycopg.Error) and is_connection_lost(problem, self._connect().raw):
            request.problem = None  # it is repeated
            raise problem

    def _connect(self) -> PostgresConnection:
        if self._connection is None:
            self._connection = PostgresConnection(self._server.connect(read_only=self._read_only))
        return self._connection

    def _drop_transaction(self, problem: BaseException) -> bool:
        """End a failed transaction; True if the connection was lost."""
        lost = self._connection is None or is_connection_lost(problem, self._connection.raw)
        if not lost:
            with suppress(psycopg.Error):
                self._roll_back()
                return False
        if self._connection is not None:
            self._connection.raw.close()
        self._connection, self._transaction = None, ""
        return lost

    def _defer(self, request: WriteRequest) -> None:
        """Return the result now, and commit later."""
        if request.problem is None:
            request.deferred = True
            self._deferred.append(request)
            if self._commit_at is None:
                self._commit_at = time.monotonic() + DEFERRED_COMMIT_DELAY_S
        self._resolve(request)

    def _resolve(self, request: WriteRequest) -> None:
        request.resolved = True
        problem = request.problem and translate_error(request.problem, self._server.name)
        if not self._resolutions:
            self._oldest_resolution_at = time.monotonic()
        self._resolutions.append((request.future, request.result, problem))
        if time.monotonic() > self._oldest_resolution_at + RESOLUTION_BATCH_DELAY_S:
            self._flush_resolutions()

    def _flush_resolutions(self) -> None:
        """Wake several callers at once: each of them takes the interpreter lock."""
        if self._resolutions:
            self._call_in_loop(resolve_all, self._resolutions)
            self._resolutions = []

    def _fail(self, requests: list[WriteRequest], problem: BaseException) -> None:
        unknown = set(map(id, self._unknown_commit[1])) if self._unknown_commit else set[int]()
        for request in requests:
            request.problem = (
                CommitUnknown(self._server.name) if id(request) in unknown else problem
            )
            self._resolve(request)
        if self._deferred:
            logger.warning("%s: deferred commit failed, retrying: %s", self._server.name, problem)

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # In a closed loop no caller waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
