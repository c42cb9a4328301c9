"""A ledger on disk, that several processes may share: what was set aside is never forgotten.

A reservation is committed before `reserve` returns, so before anything it pays for begins. What
was really spent is written behind: a process that dies in between leaves the reservation, which
counts in full until the run goes on or is closed. So a crash can make it count too much, never
too little; only what a reply took beyond its reservation can be lost with the last moments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as File
from typing import TypeVar

from evoclaw.core.ledgers import (
    NO_MORE,
    NOTHING,
    Account,
    Amounts,
    Left,
    Limit,
    Path,
    Refusal,
    Reservation,
    least,
)
from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    StoreError,
    unsealed,
)
from evoclaw.store.databases.opening import Single
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.governing.books import ACCOUNT, Books

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


class StoredLedger:
    """Accounts that are kept."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        *,
        wait: bool = True,
    ) -> None:
        """See `open_file`, and `begin` for a database that holds more than this.

        Args:
            database: Where it is.
            clock: The wall clock; of the server, if several machines share the ledger.
            wait: Whether what was opened or reserved is committed when that returns. If not, it is
                with the next write to the database that waits, as that of a command: whoever begins
                what it pays for must have waited for one.
        """
        self.database, self._owns, self._waits = database, False, wait
        self._name, self._wall = database.name, clock
        self._latest = 0.0
        self._seen: dict[str, Account] = {}
        self._behind: list[Callable[[Books], None]] = []
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
        # Safe against everything but that a power cut takes the last moments back.
        form = Single(SCHEMA, "NORMAL")
        ledger = cls(await SqliteDatabase.open(path, form, durable=durable), clock)
        ledger._owns = True
        try:
            await ledger.begin(alone=alone)
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
            if self._writing:
                # Begun by the timer just now: it must not outlive what it writes to.
                await asyncio.wait(self._writing)
            if self._owns:
                await self.database.close()

    async def flush(self) -> None:
        """Have everything written that was said so far."""
        if self._behind:
            await self._write(lambda _: None)

    async def begin(self, *, alone: bool = False) -> None:
        """Take up what is there; see `open_file` on who is alone."""
        latest = "SELECT max(latest) FROM (SELECT max(touched) AS latest FROM accounts UNION "
        latest += "SELECT max(at) FROM holds) AS times"

        def look(connection: Connection) -> float:
            return connection.execute(latest).fetchone()[0] or 0.0

        # In a transaction, as a server tells the time by it.
        self._latest = await self.database.write(look)
        now = self._now()

        def tidy(connection: Connection) -> None:
            books = Books(connection, self._name)
            rows = "SELECT id FROM holds WHERE open = 1 AND at <= ?"
            until = now if alone else now - FORGOTTEN
            for (id,) in connection.execute(rows, (until,)).fetchall():
                books.settle(id, None, now)
            books.put()
            gone = now - KEPT
            connection.execute("DELETE FROM accounts WHERE closed = 1 AND touched < ?", (gone,))

        await self.database.write(tidy)

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Make sure an account is there, with these limits."""
        now = self._now()

        def deed(books: Books) -> Account:
            return books.open(account, limits, spent, now)

        self._seen[account] = await self._write(deed, wait=self._waits)

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
        now, passed = self._now(), False

        def deed(books: Books) -> tuple[Reservation | Refusal, dict[str, Account]]:
            nonlocal passed
            found = books.reserve(path, amounts, id, leaving, also, now)
            if passed and isinstance(found, Refusal):
                # Promised, lost with its connection, and taken by another since.
                raise StoreError(f"{self._name}: what was set aside was lost")
            passed = isinstance(found, Reservation)
            return found, {account.name: account for account in books.on(path)}

        answer, seen = await self._write(deed, wait=self._waits)
        self._seen.update(seen)
        return answer

    def settle(self, id: str, real: Amounts, path: Path = ()) -> None:
        """Say what was really spent; the first time counts."""
        now, spent = self._now(), dict(real)
        self._later(lambda books: books.settle(id, spent, now, path))

    def release(self, id: str) -> None:
        """Set aside no longer."""
        self._later(lambda books: books.release(id))

    def close(self, account: str) -> None:
        """What it still has set aside is spent; its reservations are forgotten."""
        now = self._now()
        self._seen.pop(account, None)
        self._later(lambda books: books.close(account, now))

    def left(self, path: Path) -> dict[str, Left]:
        """What is left where there is least, as last seen from here."""
        found = [self._seen[name] for name in path if name in self._seen]
        return least(found, self._now())

    async def accounts(self, within: str = "") -> Sequence[Account]:
        """All of them, or only one and those below it, by name."""
        # '0' comes right after '/'
        only = "WHERE name = ? OR (name >= ? AND name < ?)" if within else ""
        values = (within, f"{within}/", f"{within}0") if within else ()

        def work(connection: Connection) -> list[Account]:
            rows = connection.execute(f"SELECT state FROM accounts {only} ORDER BY name", values)
            return [ACCOUNT.decode(unsealed(state, self._name)) for (state,) in rows]

        await self.flush()
        return await self.database.read(work)

    async def _write(self, deed: Callable[[Books], T], *, wait: bool = True) -> T:
        """Do something after all that was said before it; both are kept, or neither."""
        behind, self._behind = self._behind, []

        def all_of_it(connection: Connection) -> T:
            books = Books(connection, self._name)
            for one in behind:
                one(books)
            result = deed(books)
            books.put()
            return result

        try:
            return await self.database.write(all_of_it, wait=wait)
        except asyncio.CancelledError:
            raise  # it is done all the same
        except BaseException:
            self._behind = [*behind, *self._behind]
            raise

    def _later(self, deed: Callable[[Books], None]) -> None:
        self._behind.append(deed)
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
