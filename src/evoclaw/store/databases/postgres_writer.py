"""The thread that speaks to PostgreSQL: orders in batches, each batch a transaction.

All who write to one database take turns, also from other machines: a transaction begins with a
lock. So what reads and then writes is as safe as on SQLite, and what a number was given first is
seen first. Who stops in the middle of its turn loses it after `STALLED` seconds.

If the server goes away during a commit, it is asked afterwards whether that was done; only if it
stays away is a caller told that nobody knows.
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
"""Seconds at most before a write is committed that nobody waits for: it is our turn for as long,
and others wait for it."""
HELD_BACK = 0.005
"""Seconds at most that an answer waits for others, to be handed out with them."""
AGAIN = 1.0
"""Seconds before a commit that failed, and that nobody waits for, is tried again."""
BEGIN = (
    "BEGIN; SELECT pg_advisory_xact_lock({key}); "
    "SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::text"
)


class PostgresWriter:
    """The thread, and what it knows."""

    def __init__(
        self,
        server: Server,
        connection: psycopg.Connection | None,
        loop: asyncio.AbstractEventLoop,
        patience: float,
        sender: str,
    ) -> None:
        """Without a connection it only reads, and connects when it is first asked."""
        self.commits, self.busy_s = 0, 0.0
        self.ahead = time.time() - time.monotonic()
        """Seconds that the server's clock is ahead of our steady one, as of the last transaction;
        until then we can only believe our own."""
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
        """In the open transaction; if there is none, to be done again before anything else."""
        self._transaction = ""
        """The number of the open one."""
        self._undecided: tuple[str, list[Order]] | None = None
        """A transaction that was told to commit, and what is in it, if nobody answered."""
        self._due: float | None = None
        self._answers: list[Answer] = []
        """That are not handed out yet."""
        self._first_at = 0.0
        self._closing = False

    def take(self, order: Order) -> None:
        """Do something when its turn comes."""
        self._queue.put(order)

    def close(self) -> None:
        """Finish what was asked for, then end."""
        self._queue.put(None)

    def run(self, ended: asyncio.Event) -> None:
        """Be the thread."""
        while not self._closing:
            orders = self._next()
            began = time.monotonic()
            for order in orders:
                if not order.writes:
                    self._patiently(self._read, [order])
            self._hand_out()
            writes = [order for order in orders if order.writes]
            if writes or self._promised and (self._is_due() or self._closing):
                self._write(writes)
                self._hand_out()
            self.busy_s += time.monotonic() - began
        if self._promised and self.broken is None:
            self.broken = StoreError(f"{self._server.name}: the last writes could not be stored")
        if self._spoken is not None:
            self._spoken.raw.close()
        self._tell(ended.set)

    def _next(self) -> list[Order]:
        """What was asked for; nothing if what was promised is due."""
        wait = None if self._due is None else max(self._due - time.monotonic(), 0)
        found: list[Order | None] = []
        with suppress(Empty):
            found.append(self._queue.get(timeout=wait))
            while len(found) < LARGEST_BATCH:
                found.append(self._queue.get_nowait())
        if None in found:
            self._closing = True
        return [order for order in found if order is not None]

    def _is_due(self) -> bool:
        return self._due is not None and self._due <= time.monotonic()

    def _write(self, orders: list[Order]) -> None:
        self._patiently(self._do, orders)
        if self._promised and not self._transaction:
            self._due = time.monotonic() + AGAIN
        elif not self._promised:
            self._due = None

    def _patiently(self, step: Callable[[list[Order]], None], orders: list[Order]) -> None:
        """Do a step; again, if the server went away meanwhile and comes back in time."""
        end, pause = 0.0, 0.02
        while self.broken is None:
            left = [order for order in orders if not order.promised and not order.answered]
            if orders and not left:
                return
            try:
                step(left)
                return
            except (psycopg.Error, Broken) as problem:
                # Counted from here: we may have been stopped ourselves, for longer than that.
                gone, end = self._drop(problem), end or time.monotonic() + self._patience
                if not gone or time.monotonic() + pause > end:
                    self._fail(left, problem)
                    return
                self._hand_out()
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
        self._fail([order for order in orders if not order.promised], self.broken)

    def _read(self, orders: list[Order]) -> None:
        (order,) = orders
        if self._promised or self._undecided:
            self._begin()
        spoken = self._connected()
        if self._transaction:
            attempt_all(spoken, orders, marks=True, alive=self._check)
        else:
            order.attempt(spoken)
            self._check(order)
        self._answer(order)

    def _do(self, orders: list[Order]) -> None:
        """Do writes; without any, commit what was promised."""
        self._begin()
        orders = [order for order in orders if not order.answered]
        spoken, marks = self._connected(), bool(self._promised)
        if not attempt_all(spoken, orders, marks=marks, alive=self._check):
            self._roll_back()
            if len(orders) > 1:
                self._begin()
                attempt_all(spoken, orders, marks=True, alive=self._check)
        for order in orders:
            if not order.wait:
                self._promise(order)
        waiting = [order for order in orders if order.wait]
        self._hand_out()
        if self._transaction and (waiting or not orders):
            self._commit(waiting)
        for order in waiting:
            self._answer(order)

    def _begin(self) -> None:
        """Make sure that a transaction is open, with all that was promised in it."""
        if self._transaction:
            return
        number, now = self._connected().begin(self._begin_statement, self._lock)
        self._transaction, self.ahead = str(number), float(now) - time.monotonic()
        self._decide()
        attempt_all(self._connected(), self._promised, marks=True, alive=self._check)
        self._give_up([order for order in self._promised if order.problem is not None])

    def _give_up(self, lost: list[Order]) -> None:
        """What was promised cannot be kept: whoever relies on it must not go on."""
        for order in lost:
            if order.strand is None:
                self.broken = Broken(self._server.name, order.problem or StoreError("lost"))
                raise self.broken
            order.strand.lost = True
        if lost:
            self._promised = [order for order in self._promised if not order.is_lost]
            self._roll_back()
            self._begin()

    def _decide(self) -> None:
        """Find out whether a transaction was committed when the server went away."""
        if self._undecided is None:
            return
        # Our lock is the one that it held: whatever became of it, it is over.
        number, orders = self._undecided
        spoken = self._connected()
        spoken.execute("SAVEPOINT one")
        try:
            status = spoken.execute("SELECT pg_xact_status(?::xid8)", (number,)).fetchone()
            done = status[0] == "committed"
        except errors.InvalidParameterValue:
            # The server knows of no such number: it was restored from an earlier time.
            spoken.execute("ROLLBACK TO SAVEPOINT one")
            done = False
        spoken.execute("RELEASE SAVEPOINT one")
        self._undecided = None
        if done:
            self._committed(orders)
            for order in orders:
                self._answer(order)

    def _commit(self, waiting: list[Order]) -> None:
        orders = [*self._promised, *waiting]
        self._undecided = (self._transaction, orders)
        raw = self._connected().raw
        try:
            cursor = raw.execute(self._ending(orders))
            while cursor.nextset():
                pass
        except psycopg.Error as problem:
            if not is_gone(problem, raw):
                self._undecided = None  # it said itself that it did not
            raise
        self._transaction, self._undecided = "", None
        if cursor.statusmessage != "COMMIT":
            raise psycopg.InternalError("the transaction was undone: work hid a failure of its own")
        self._committed(self._promised)

    def _ending(self, orders: list[Order]) -> bytes:
        """What commits these, and tells whoever should look: in one message to the server."""
        tells = [notice for order in orders if order.problem is None for notice in order.tells]
        if not tells:
            return b"COMMIT"
        raw, statements = self._connected().raw, list[bytes]()
        for letter in letters_of(self._sender, tells):
            quoted = Literal(letter).as_bytes(raw)
            statements.append(b"SELECT pg_notify('%s', %s)" % (self._channel.encode(), quoted))
        return b"; ".join([*statements, b"COMMIT"])

    def _committed(self, orders: list[Order]) -> None:
        self.commits += 1
        done = set(map(id, orders))
        self._promised = [order for order in self._promised if id(order) not in done]

    def _roll_back(self) -> None:
        self._connected().raw.execute(b"ROLLBACK")
        self._transaction = ""

    def _check(self, order: Order) -> None:
        problem = order.problem
        if isinstance(problem, psycopg.Error) and is_gone(problem, self._connected().raw):
            order.problem = None  # it is done again
            raise problem

    def _connected(self) -> Spoken:
        if self._spoken is None:
            self._spoken = Spoken(self._server.connect(reads_only=self._reads_only))
        return self._spoken

    def _drop(self, problem: BaseException) -> bool:
        """Leave a transaction that failed; whether it was because the server is gone."""
        gone = self._spoken is None or is_gone(problem, self._spoken.raw)
        if not gone:
            with suppress(psycopg.Error):
                self._roll_back()
                return False
        if self._spoken is not None:
            self._spoken.raw.close()
        self._spoken, self._transaction = None, ""
        return gone

    def _promise(self, order: Order) -> None:
        """Give the result of what is committed later."""
        if order.problem is None:
            order.promised = True
            self._promised.append(order)
            if self._due is None:
                self._due = time.monotonic() + LINGER
        self._answer(order)

    def _answer(self, order: Order) -> None:
        order.answered = True
        problem = order.problem and explained(order.problem, self._server.name)
        if not self._answers:
            self._first_at = time.monotonic()
        self._answers.append((order.answer, order.result, problem))
        if time.monotonic() > self._first_at + HELD_BACK:
            self._hand_out()

    def _hand_out(self) -> None:
        """Tell those who asked, many at once: each one who is woken wants the interpreter."""
        if self._answers:
            self._tell(resolve_all, self._answers)
            self._answers = []

    def _fail(self, orders: list[Order], problem: BaseException) -> None:
        unknown = set(map(id, self._undecided[1])) if self._undecided else set[int]()
        for order in orders:
            order.problem = Undecided(self._server.name) if id(order) in unknown else problem
            self._answer(order)
        if self._promised:
            logger.warning("%s: not committed yet: %s", self._server.name, problem)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        # A loop that was closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
