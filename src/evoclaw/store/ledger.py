"""A ledger on disk, that several processes may share: what was set aside is never forgotten.

A reservation is committed before `reserve` returns, so before anything it pays for begins. What
was really spent is written behind: a process that dies in between leaves the reservation, which
counts in full until the run goes on or is closed. So a crash can make it count too much, never
too little; only what a reply took beyond its reservation can be lost with the last moments.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as File
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from evoclaw.core.ledgers import (
    NO_MORE,
    NOTHING,
    Account,
    Amounts,
    Hold,
    Left,
    Limit,
    Path,
    Refusal,
    Reservation,
    found_again,
    least,
    weigh,
)
from evoclaw.store.sqlite import Database, Schema, Work, sealed, unsealed

T = TypeVar("T")

SCHEMA = Schema(
    "budget ledger",
    (
        (
            """CREATE TABLE accounts (
                name TEXT PRIMARY KEY,
                state BLOB NOT NULL,
                touched REAL NOT NULL,
                closed INTEGER NOT NULL DEFAULT 0
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE holds (
                id TEXT PRIMARY KEY,
                owner TEXT NOT NULL,
                state BLOB NOT NULL,
                at REAL NOT NULL,
                open INTEGER NOT NULL
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX holds_owner ON holds (owner)",
        ),
    ),
    sealed=(("accounts", ("state",)), ("holds", ("state",))),
)
KEPT = 7 * 86_400.0
"""Seconds that an account is kept when it was closed."""
FORGOTTEN = 86_400.0
"""Seconds after which a reservation that nobody settled is taken for spent."""
BEHIND = 0.02
"""Seconds at most before what was settled is written."""
_ACCOUNT = msgspec.msgpack.Decoder(Account)
_HOLD = msgspec.msgpack.Decoder(Hold)
_PACK = msgspec.msgpack.Encoder()


class StoredLedger:
    """Accounts in a file."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        """Take over an open file; see `open_file`."""
        self.database = database
        self._path, self._wall = database.path, clock
        self._latest = 0.0
        self._seen: dict[str, Account] = {}
        self._behind: list[Work[None]] = []
        """What is to be written before anything else."""
        self._due: asyncio.TimerHandle | None = None
        self._writing: set[asyncio.Future[None]] = set()

    @classmethod
    async def open_file(
        cls,
        path: File,
        *,
        durable: bool = False,
        alone: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> StoredLedger:
        """Open or create a ledger.

        Args:
            path: Of the file.
            durable: Whether a reservation outlives a power cut too, not just the process.
            alone: No other process uses it: what is still set aside is a dead one's, and spent.
            clock: The wall clock; time in a ledger never goes back, whatever it says.
        """
        ledger = cls(await Database.open(path, SCHEMA, durable=durable), clock)
        try:
            await ledger._begin(durable, alone)
        except BaseException:
            await ledger.database.close()
            raise
        return ledger

    async def __aenter__(self) -> StoredLedger:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.flush()
        finally:
            if self._due is not None:
                self._due.cancel()
            await self.database.close()

    async def flush(self) -> None:
        """Have everything written that was said so far."""
        if self._behind:
            await self._write(lambda _: None)

    async def _begin(self, durable: bool, alone: bool) -> None:
        latest = "SELECT max(latest) FROM (SELECT max(touched) AS latest FROM accounts UNION "
        latest += "SELECT max(at) FROM holds)"

        def look(connection: sqlite3.Connection) -> float:
            if not durable:
                # Safe against everything but that a power cut takes the last moments back.
                connection.execute("PRAGMA synchronous=NORMAL")
            return connection.execute(latest).fetchone()[0] or 0.0

        self._latest = await self.database.read(look)
        now = self._now()

        def tidy(connection: sqlite3.Connection) -> None:
            books = _Books(connection, self._path)
            rows = "SELECT id FROM holds WHERE open AND at <= ?"
            until = now if alone else now - FORGOTTEN
            for (id,) in connection.execute(rows, (until,)).fetchall():
                hold = books.hold(id)
                if hold is not None:
                    books.settle(hold, hold.amounts, now)
            books.put()
            gone = now - KEPT
            connection.execute("DELETE FROM accounts WHERE closed AND touched < ?", (gone,))

        await self.database.write(tidy)

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Make sure an account is there, with these limits."""
        now = self._now()

        def work(connection: sqlite3.Connection) -> Account:
            books = _Books(connection, self._path)
            known = books.account(account)
            known.limits, known.closed = dict(limits), False
            if not known.touched:
                known.spend(spent, now)
                known.touched = now
            books.put()
            return known

        self._seen[account] = await self._write(work)

    async def reserve(
        self,
        path: Path,
        amounts: Amounts,
        id: str,
        *,
        leaving: Amounts = NOTHING,
        also: Mapping[str, tuple[Path, Amounts]] = NO_MORE,
    ) -> Reservation | Refusal:
        """Set an amount aside in every account of a path, or in none."""
        now = self._now()

        def work(
            connection: sqlite3.Connection,
        ) -> tuple[Reservation | Refusal, dict[str, Account]]:
            books = _Books(connection, self._path)
            found = books.reserve_all(path, amounts, id, leaving, also, now)
            if isinstance(found, Refusal):
                # What the books hold now was not written, and must not be seen.
                books = _Books(connection, self._path)
            else:
                books.put()
            return found, {account.name: account for account in books.on(path)}

        answer, seen = await self._write(work)
        self._seen.update(seen)
        return answer

    def settle(self, id: str, real: Amounts, path: Path = ()) -> None:
        """Say what was really spent; the first time counts."""
        now, spent = self._now(), dict(real)

        def work(connection: sqlite3.Connection) -> None:
            books = _Books(connection, self._path)
            hold = books.hold(id) or (Hold(id, path, {}, now) if path else None)
            if hold is not None and not hold.settled:
                books.settle(hold, spent, now)
                books.put()

        self._later(work)

    def release(self, id: str) -> None:
        """Set aside no longer."""

        def work(connection: sqlite3.Connection) -> None:
            books = _Books(connection, self._path)
            hold = books.hold(id)
            if hold is not None and not hold.settled:
                books.release(hold)
                books.put()

        self._later(work)

    def close(self, account: str) -> None:
        """What it still has set aside is spent; its reservations are forgotten."""
        now = self._now()

        def work(connection: sqlite3.Connection) -> None:
            books = _Books(connection, self._path)
            rows = "SELECT id FROM holds WHERE owner = ? AND open"
            for (id,) in connection.execute(rows, (account,)).fetchall():
                hold = books.hold(id)
                if hold is not None:
                    books.settle(hold, hold.amounts, now)
            books.account(account).closed = True
            books.put()
            connection.execute("DELETE FROM holds WHERE owner = ?", (account,))

        self._seen.pop(account, None)
        self._later(work)

    def left(self, path: Path) -> dict[str, Left]:
        """What is left where there is least, as last seen from here."""
        found = [self._seen[name] for name in path if name in self._seen]
        return least(found, self._now())

    async def accounts(self) -> Sequence[Account]:
        """All of them, by name."""

        def work(connection: sqlite3.Connection) -> list[Account]:
            rows = connection.execute("SELECT state FROM accounts ORDER BY name")
            return [_ACCOUNT.decode(unsealed(state, self._path)) for (state,) in rows]

        await self.flush()
        return await self.database.read(work)

    async def _write(self, work: Work[T]) -> T:
        """Do something after all that was said before it; both are kept, or neither."""
        behind, self._behind = self._behind, []

        def all_of_it(connection: sqlite3.Connection) -> T:
            for one in behind:
                one(connection)
            return work(connection)

        try:
            return await self.database.write(all_of_it)
        except asyncio.CancelledError:
            raise  # it is done all the same
        except BaseException:
            self._behind = [*behind, *self._behind]
            raise

    def _later(self, work: Work[None]) -> None:
        self._behind.append(work)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(BEHIND, self._catch_up)

    def _catch_up(self) -> None:
        self._due = None
        writing = asyncio.ensure_future(self.flush())
        self._writing.add(writing)
        writing.add_done_callback(self._caught_up)

    def _caught_up(self, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            # It is still to be written: the next one who wants to spend tries, and is told.
            writing.exception()

    def _now(self) -> float:
        self._latest = max(self._latest, self._wall())
        return self._latest


class _Books:
    """The rows that one transaction touches."""

    def __init__(self, connection: sqlite3.Connection, path: File) -> None:
        self._connection, self._path = connection, path
        self._accounts: dict[str, Account] = {}
        self._holds: dict[str, Hold] = {}

    def account(self, name: str) -> Account:
        return self.on((name,))[0]

    def hold(self, id: str) -> Hold | None:
        statement = "SELECT state FROM holds WHERE id = ?"
        row = self._connection.execute(statement, (id,)).fetchone()
        return _HOLD.decode(unsealed(row[0], self._path)) if row else None

    def on(self, path: Path) -> list[Account]:
        """The accounts of a path."""
        missing = [name for name in path if name not in self._accounts]
        if missing:
            marks = ",".join("?" * len(missing))
            statement = f"SELECT name, state FROM accounts WHERE name IN ({marks})"
            for name, state in self._connection.execute(statement, missing):
                self._accounts[name] = _ACCOUNT.decode(unsealed(state, self._path))
            for name in missing:
                if name not in self._accounts:
                    self._accounts[name] = Account(name)
        return [self._accounts[name] for name in path]

    def reserve(
        self, path: Path, amounts: Amounts, id: str, leaving: Amounts, now: float
    ) -> Reservation | Refusal:
        known = self._holds.get(id) or self.hold(id)
        if known is not None:
            return found_again(known, self.on(known.path), now)
        if min(amounts.values(), default=0) < 0:
            raise ValueError(f"an amount below nothing: {amounts}")
        accounts = self.on(path)
        before = weigh(accounts, amounts, leaving, now)
        if isinstance(before, Refusal):
            return before
        for account in accounts:
            account.hold(amounts)
        self._holds[id] = Hold(id, path, dict(amounts), now)
        return Reservation(id, before=before)

    def reserve_all(
        self,
        path: Path,
        amounts: Amounts,
        id: str,
        leaving: Amounts,
        also: Mapping[str, tuple[Path, Amounts]],
        now: float,
    ) -> Reservation | Refusal:
        """Set aside everything, or say what there is not enough for."""
        found = self.reserve(path, amounts, id, leaving, now)
        fresh: list[str] = []
        for other, (where, more) in also.items():
            if isinstance(found, Refusal):
                return found
            one = self.reserve(where, more, other, NOTHING, now)
            if isinstance(one, Refusal):
                return one
            fresh += [other] if one.fresh else []
        return (
            found if isinstance(found, Refusal) or not fresh else replace(found, also=tuple(fresh))
        )

    def settle(self, hold: Hold, real: Amounts, now: float) -> None:
        for account in self.on(hold.path):
            account.let_go(hold.amounts)
            account.spend(real, now)
        hold.settled = True
        self._holds[hold.id] = hold

    def release(self, hold: Hold) -> None:
        for account in self.on(hold.path):
            account.let_go(hold.amounts)
        self._connection.execute("DELETE FROM holds WHERE id = ?", (hold.id,))

    def put(self) -> None:
        """Write what was changed."""
        put = (
            "INSERT INTO accounts (name, state, touched, closed) VALUES (?1, ?2, ?3, ?4) "
            "ON CONFLICT (name) DO UPDATE SET state = ?2, touched = ?3, closed = ?4"
        )
        rows = [
            (account.name, sealed(_PACK.encode(account)), account.touched, account.closed)
            for account in self._accounts.values()
        ]
        self._connection.executemany(put, rows)
        keep = (
            "INSERT INTO holds (id, owner, state, at, open) VALUES (?1, ?2, ?3, ?4, ?5) "
            "ON CONFLICT (id) DO UPDATE SET state = ?3, open = ?5"
        )
        holds = [
            (hold.id, hold.owner, sealed(_PACK.encode(hold)), hold.at, not hold.settled)
            for hold in self._holds.values()
        ]
        self._connection.executemany(keep, holds)
