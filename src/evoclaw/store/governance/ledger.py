"""A ledger in a database, which several processes may share: no reservation is ever lost.

A reservation is committed before `reserve` returns, so before the work that it pays for starts. The
real amount is written behind: a process that dies before leaves the reservation, which counts in
full until the run is resumed or closed. So after a crash the ledger may count too much, never too
little; only what a reply used beyond its reservation can be lost with the last moments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as File
from typing import TypeVar

from evoclaw.core.ledgers import (
    NO_AMOUNTS,
    NO_RESERVATIONS,
    Account,
    AccountPath,
    Amounts,
    InsufficientFunds,
    Limit,
    RemainingBudget,
    Reservation,
    remaining_by_kind,
)
from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    StoreError,
    verify_checksum,
)
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.sqlite_file import SingleSchemaFormat
from evoclaw.store.governance.ledger_transaction import ACCOUNT_DECODER, LedgerTransaction

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
    checksummed=(("accounts", ("state",)), ("holds", ("state",))),
)
CLOSED_ACCOUNT_RETENTION_S = 7 * 86_400.0
"""Seconds that a closed account is kept."""
RESERVATION_TIMEOUT_S = 86_400.0
"""Seconds after which an unsettled reservation counts as spent."""
WRITE_BEHIND_DELAY_S = 0.02
"""Seconds at most before a settlement is written."""


class StoredLedger:
    """A ledger whose accounts are stored in a database."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        *,
        wait: bool = True,
    ) -> None:
        """See `open_file`, and `start` for a database with more schemas.

        Args:
            database: The database.
            clock: The wall clock; of the server, if several machines share the ledger.
            wait: Whether `open` and `reserve` wait for the commit. If not, it is deferred to the
                next write that waits, such as that of a command: the caller must have waited for
                one before it starts the work that the reservation pays for.
        """
        self.database, self._owns, self._wait = database, False, wait
        self._name, self._wall = database.name, clock
        self._latest = 0.0
        self._last_seen: dict[str, Account] = {}
        self._pending: list[Callable[[LedgerTransaction], None]] = []
        """What is to be written before anything else."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._writing: set[asyncio.Future[None]] = set()

    @classmethod
    async def open_file(
        cls,
        path: File,
        *,
        durable: bool = False,
        exclusive: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> StoredLedger:
        """Open or create a ledger.

        Args:
            path: The file.
            durable: Whether a reservation survives a power cut too, not just the process.
            exclusive: No other process uses it: open reservations belong to a dead process, and
                count as spent.
            clock: The wall clock; the time of a ledger never goes back.
        """
        # NORMAL: a power cut may lose the last commits, and nothing else is lost.
        file_format = SingleSchemaFormat(SCHEMA, "NORMAL")
        ledger = cls(await SqliteDatabase.open(path, file_format, durable=durable), clock)
        ledger._owns = True
        try:
            await ledger.start(exclusive=exclusive)
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
            if self._flush_timer is not None:
                self._flush_timer.cancel()
            if self._writing:
                # The timer has just started it: it must not outlive the database.
                await asyncio.wait(self._writing)
            if self._owns:
                await self.database.close()

    async def flush(self) -> None:
        """Write all pending operations."""
        if self._pending:
            await self._write(lambda _: None)

    async def start(self, *, exclusive: bool = False) -> None:
        """Read the stored state and prune it; see `open_file` for `exclusive`."""
        latest = "SELECT max(latest) FROM (SELECT max(touched) AS latest FROM accounts UNION "
        latest += "SELECT max(at) FROM holds) AS times"

        def read_latest(connection: Connection) -> float:
            return connection.execute(latest).fetchone()[0] or 0.0

        # A write, because the clock of a server is read in a transaction.
        self._latest = await self.database.write(read_latest)
        now = self._now()

        def prune(connection: Connection) -> None:
            transaction = LedgerTransaction(connection, self._name)
            rows = "SELECT id FROM holds WHERE open = 1 AND at <= ?"
            until = now if exclusive else now - RESERVATION_TIMEOUT_S
            for (id,) in connection.execute(rows, (until,)).fetchall():
                transaction.settle(id, None, now)
            transaction.flush()
            oldest = now - CLOSED_ACCOUNT_RETENTION_S
            connection.execute("DELETE FROM accounts WHERE closed = 1 AND touched < ?", (oldest,))

        await self.database.write(prune)

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Open an account with these limits, or update the limits of an existing one."""
        now = self._now()

        def operation(transaction: LedgerTransaction) -> Account:
            return transaction.open(account, limits, spent, now)

        self._last_seen[account] = await self._write(operation, wait=self._wait)

    async def reserve(
        self,
        path: AccountPath,
        amounts: Amounts,
        id: str,
        *,
        leaving: Amounts = NO_AMOUNTS,
        also: Mapping[str, tuple[AccountPath, Amounts]] = NO_RESERVATIONS,
    ) -> Reservation | InsufficientFunds:
        """Reserve an amount on every account of a path, or on none."""
        now, passed = self._now(), False

        def operation(
            transaction: LedgerTransaction,
        ) -> tuple[Reservation | InsufficientFunds, dict[str, Account]]:
            nonlocal passed
            found = transaction.reserve(path, amounts, id, leaving, also, now)
            if passed and isinstance(found, InsufficientFunds):
                # The deferred commit was lost, and another process has reserved the amount since.
                raise StoreError(f"{self._name}: a reservation was lost with its connection; retry")
            passed = isinstance(found, Reservation)
            return found, {account.name: account for account in transaction.accounts(path)}

        answer, seen = await self._write(operation, wait=self._wait)
        self._last_seen.update(seen)
        return answer

    def settle(self, id: str, real: Amounts, path: AccountPath = ()) -> None:
        """Settle a reservation with the real amount; only the first time counts."""
        now, spent = self._now(), dict(real)
        self._write_behind(lambda transaction: transaction.settle(id, spent, now, path))

    def release(self, id: str) -> None:
        """Release a reservation."""
        self._write_behind(lambda transaction: transaction.release(id))

    def close(self, account: str) -> None:
        """Close an account: its open reservations count as spent, and are deleted."""
        now = self._now()
        self._last_seen.pop(account, None)
        self._write_behind(lambda transaction: transaction.close(account, now))

    def remaining(self, path: AccountPath) -> dict[str, RemainingBudget]:
        """The least that is left on a path, as last seen by this process."""
        found = [self._last_seen[name] for name in path if name in self._last_seen]
        return remaining_by_kind(found, self._now())

    async def accounts(self, within: str = "") -> Sequence[Account]:
        """All accounts, or one and those below it, sorted by name."""
        # '0' comes right after '/'
        only = "WHERE name = ? OR (name >= ? AND name < ?)" if within else ""
        values = (within, f"{within}/", f"{within}0") if within else ()

        def work(connection: Connection) -> list[Account]:
            rows = connection.execute(f"SELECT state FROM accounts {only} ORDER BY name", values)
            return [ACCOUNT_DECODER.decode(verify_checksum(state, self._name)) for (state,) in rows]

        await self.flush()
        return await self.database.read(work)

    async def _write(self, operation: Callable[[LedgerTransaction], T], *, wait: bool = True) -> T:
        """Run an operation after the pending ones, in one transaction."""
        pending, self._pending = self._pending, []

        def work(connection: Connection) -> T:
            transaction = LedgerTransaction(connection, self._name)
            for earlier in pending:
                earlier(transaction)
            result = operation(transaction)
            transaction.flush()
            return result

        try:
            return await self.database.write(work, wait=wait)
        except asyncio.CancelledError:
            raise  # the write happens all the same
        except BaseException:
            self._pending = [*pending, *self._pending]
            raise

    def _write_behind(self, operation: Callable[[LedgerTransaction], None]) -> None:
        self._pending.append(operation)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(
                WRITE_BEHIND_DELAY_S, self._start_flush
            )

    def _start_flush(self) -> None:
        self._flush_timer = None
        writing = asyncio.ensure_future(self.flush())
        self._writing.add(writing)
        writing.add_done_callback(self._flush_done)

    def _flush_done(self, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            # The operations are pending again: the next reservation retries, and raises the error.
            writing.exception()

    def _now(self) -> float:
        self._latest = max(self._latest, self._wall())
        return self._latest
