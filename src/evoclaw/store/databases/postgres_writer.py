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

from evoclaw.store.databases.database import StoreError, Undecided
from evoclaw.store.databases.listening import channel_of
from evoclaw.store.databases.notices import letters_of
from evoclaw.store.databases.orders import (
    LARGEST_BATCH,
    Answer,
    Broken,
    Order,
    attempt_all,
    resolve_all,
)
from evoclaw.store.databases.postgres_link import Server, Spoken, explained, is_gone, lock_key

logger = logging.getLogger(__name__)

LINGER = 0.005
"""Seconds at most before a deferred commit. The process holds the write lock meanwhile, and others
wait for it."""
HELD_BACK = 0.005
"""Seconds at most that a result is held back, to wake several callers at once."""
AGAIN = 1.0
"""Seconds before a failed deferred commit is tried again."""
BEGIN = (
    "BEGIN; SELECT pg_advisory_xact_lock({key}); "
    "SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::text"
)


class PostgresWriter:
    """The worker thread of one connection."""

    def __init__(
        self,
        server: Server,
        connection: psycopg.Connection | None,
        loop: asyncio.AbstractEventLoop,
        patience: float,
        sender: str,
    ) -> None:
        """Without a connection it is read-only, and connects for the first request."""
        self.commits, self.busy_s = 0, 0.0
        self.ahead = time.time() - time.monotonic()
        """The server's clock minus our monotonic clock, in seconds, as of the last transaction;
        before the first one, by our own wall clock."""
        self.broken: StoreError | None = None
        """Why nothing can be written any more."""
        self._server, self._loop, self._patience = server, loop, patience
        self._spoken: Spoken | None = None if connection is None else Spoken(connection)
        self._reads_only = connection is None
        self._sender, self._channel = sender, channel_of(server.schema)
        self._lock = lock_key(server.schema)
        self._begin_statement = BEGIN.format(key=self._lock).encode()
        self._queue: SimpleQueue[Order | None] = SimpleQueue()
        self._promised: list[Order] = []
        """Deferred commits: in the open transaction; without one, to be repeated before the next
        request."""
        self._transaction = ""
        """The id of the open transaction."""
        self._undecided: tuple[str, list[Order]] | None = None
        """The id and the requests of a transaction whose COMMIT got no answer."""
        self._due: float | None = None
        self._answers: list[Answer] = []
        """Results that their callers do not have yet."""
        self._first_at = 0.0
        self._closing = False

    def take(self, request: Order) -> None:
        """Queue a request."""
        self._queue.put(request)

    def close(self) -> None:
        """Finish all requests, then end."""
        self._queue.put(None)

    def run(self, ended: asyncio.Event) -> None:
        """The main function of the thread."""
        while not self._closing:
            requests = self._next()
            started = time.monotonic()
            for request in requests:
                if not request.writes:
                    self._patiently(self._read, [request])
            self._hand_out()
            writes = [request for request in requests if request.writes]
            if writes or self._promised and (self._is_due() or self._closing):
                self._write(writes)
                self._hand_out()
            self.busy_s += time.monotonic() - started
        if self._promised and self.broken is None:
            self.broken = StoreError(f"{self._server.name}: the last deferred commits failed")
        if self._spoken is not None:
            self._spoken.raw.close()
        self._tell(ended.set)

    def _next(self) -> list[Order]:
        """The next requests; none if a deferred commit is due."""
        wait = None if self._due is None else max(self._due - time.monotonic(), 0)
        found: list[Order | None] = []
        with suppress(Empty):
            found.append(self._queue.get(timeout=wait))
            while len(found) < LARGEST_BATCH:
                found.append(self._queue.get_nowait())
        if None in found:
            self._closing = True
        return [request for request in found if request is not None]

    def _is_due(self) -> bool:
        return self._due is not None and self._due <= time.monotonic()

    def _write(self, requests: list[Order]) -> None:
        self._patiently(self._do, requests)
        if self._promised and not self._transaction:
            self._due = time.monotonic() + AGAIN
        elif not self._promised:
            self._due = None

    def _patiently(self, step: Callable[[list[Order]], None], requests: list[Order]) -> None:
        """Run a step; repeat it if the connection is lost and restored in time."""
        end, pause = 0.0, 0.02
        while self.broken is None:
            left = [
                request for request in requests if not request.promised and not request.answered
            ]
            if requests and not left:
                return
            try:
                step(left)
                return
            except (psycopg.Error, Broken) as problem:
                # Counted from here: this process itself may have been stopped for longer.
                lost, end = self._drop(problem), end or time.monotonic() + self._patience
                if not lost or time.monotonic() + pause > end:
                    self._fail(left, problem)
                    return
                self._hand_out()
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
        self._fail([request for request in requests if not request.promised], self.broken)

    def _read(self, requests: list[Order]) -> None:
        (request,) = requests
        if self._promised or self._undecided:
            self._begin()
        connection = self._connected()
        if self._transaction:
            attempt_all(connection, requests, marks=True, alive=self._check)
        else:
            request.attempt(connection)
            self._check(request)
        self._answer(request)

    def _do(self, requests: list[Order]) -> None:
        """Run writes; without any, commit the deferred ones."""
        self._begin()
        requests = [request for request in requests if not request.answered]
        connection, marks = self._connected(), bool(self._promised)
        if not attempt_all(connection, requests, marks=marks, alive=self._check):
            self._roll_back()
            if len(requests) > 1:
                self._begin()
                attempt_all(connection, requests, marks=True, alive=self._check)
        for request in requests:
            if not request.wait:
                self._promise(request)
        waiting = [request for request in requests if request.wait]
        self._hand_out()
        if self._transaction and (waiting or not requests):
            self._commit(waiting)
        for request in waiting:
            self._answer(request)

    def _begin(self) -> None:
        """Make sure that a transaction is open, with all deferred writes in it."""
        if self._transaction:
            return
        number, now = self._connected().begin(self._begin_statement, self._lock)
        self._transaction, self.ahead = str(number), float(now) - time.monotonic()
        self._decide()
        attempt_all(self._connected(), self._promised, marks=True, alive=self._check)
        self._give_up([request for request in self._promised if request.problem is not None])

    def _give_up(self, lost: list[Order]) -> None:
        """Fail the scopes of deferred writes that could not be repeated."""
        for request in lost:
            if request.strand is None:
                self.broken = Broken(self._server.name, request.problem or StoreError("lost"))
                raise self.broken
            request.strand.lost = True
        if lost:
            self._promised = [request for request in self._promised if not request.is_lost]
            self._roll_back()
            self._begin()

    def _decide(self) -> None:
        """Find out whether a transaction was committed when the connection was lost."""
        if self._undecided is None:
            return
        # We hold the lock that it held: either way, that transaction has ended.
        number, requests = self._undecided
        connection = self._connected()
        connection.execute("SAVEPOINT status")
        try:
            status = connection.execute("SELECT pg_xact_status(?::xid8)", (number,)).fetchone()
            done = status[0] == "committed"
        except errors.InvalidParameterValue:
            # The server does not know the id: it was restored from an earlier state.
            connection.execute("ROLLBACK TO SAVEPOINT status")
            done = False
        connection.execute("RELEASE SAVEPOINT status")
        self._undecided = None
        if done:
            self._committed(requests)
            for request in requests:
                self._answer(request)

    def _commit(self, waiting: list[Order]) -> None:
        requests = [*self._promised, *waiting]
        self._undecided = (self._transaction, requests)
        raw = self._connected().raw
        try:
            cursor = raw.execute(self._ending(requests))
            while cursor.nextset():
                pass
        except psycopg.Error as problem:
            if not is_gone(problem, raw):
                self._undecided = None  # the server answered that it did not commit
            raise
        self._transaction, self._undecided = "", None
        if cursor.statusmessage != "COMMIT":
            raise psycopg.InternalError("rolled back: a request caught a database error of its own")
        self._committed(self._promised)

    def _ending(self, requests: list[Order]) -> bytes:
        """COMMIT together with the notices, in one message to the server."""
        notices = [
            notice for request in requests if request.problem is None for notice in request.tells
        ]
        if not notices:
            return b"COMMIT"
        raw, statements = self._connected().raw, list[bytes]()
        for payload in letters_of(self._sender, notices):
            quoted = Literal(payload).as_bytes(raw)
            statements.append(b"SELECT pg_notify('%s', %s)" % (self._channel.encode(), quoted))
        return b"; ".join([*statements, b"COMMIT"])

    def _committed(self, requests: list[Order]) -> None:
        self.commits += 1
        done = set(map(id, requests))
        self._promised = [request for request in self._promised if id(request) not in done]

    def _roll_back(self) -> None:
        self._connected().raw.execute(b"ROLLBACK")
        self._transaction = ""

    def _check(self, request: Order) -> None:
        problem = request.problem
        if isinstance(problem, psycopg.Error) and is_gone(problem, self._connected().raw):
            request.problem = None  # it is repeated
            raise problem

    def _connected(self) -> Spoken:
        if self._spoken is None:
            self._spoken = Spoken(self._server.connect(reads_only=self._reads_only))
        return self._spoken

    def _drop(self, problem: BaseException) -> bool:
        """End a failed transaction; True if the connection was lost."""
        lost = self._spoken is None or is_gone(problem, self._spoken.raw)
        if not lost:
            with suppress(psycopg.Error):
                self._roll_back()
                return False
        if self._spoken is not None:
            self._spoken.raw.close()
        self._spoken, self._transaction = None, ""
        return lost

    def _promise(self, request: Order) -> None:
        """Return the result now, and commit later."""
        if request.problem is None:
            request.promised = True
            self._promised.append(request)
            if self._due is None:
                self._due = time.monotonic() + LINGER
        self._answer(request)

    def _answer(self, request: Order) -> None:
        request.answered = True
        problem = request.problem and explained(request.problem, self._server.name)
        if not self._answers:
            self._first_at = time.monotonic()
        self._answers.append((request.answer, request.result, problem))
        if time.monotonic() > self._first_at + HELD_BACK:
            self._hand_out()

    def _hand_out(self) -> None:
        """Wake several callers at once: each of them takes the interpreter lock."""
        if self._answers:
            self._tell(resolve_all, self._answers)
            self._answers = []

    def _fail(self, requests: list[Order], problem: BaseException) -> None:
        unknown = set(map(id, self._undecided[1])) if self._undecided else set[int]()
        for request in requests:
            request.problem = Undecided(self._server.name) if id(request) in unknown else problem
            self._answer(request)
        if self._promised:
            logger.warning("%s: deferred commit failed, retrying: %s", self._server.name, problem)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        # In a closed loop no caller waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
