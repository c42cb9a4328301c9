"""The tables of a ledger, and their rows as accounts and reservations."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from evoclaw.core.ledgers import Account, LedgerEntry, Limit, ReservationRecord
from evoclaw.store.databases.database import Connection, DamagedStore, verify_checksum

FIRST_TABLES = (
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
)
# Instead of those above, which `convert_first_tables` empties. Texts are JSON.
TABLES = (
    """CREATE TABLE ledger_accounts (
        name TEXT PRIMARY KEY,
        limits TEXT NOT NULL,
        spent TEXT NOT NULL,
        held TEXT NOT NULL,
        recent TEXT NOT NULL,
        touched REAL NOT NULL,
        closed_at REAL,
        checksum INTEGER
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX ledger_accounts_closed ON ledger_accounts (closed_at) "
    "WHERE closed_at IS NOT NULL",
    """CREATE TABLE ledger_holds (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        path TEXT NOT NULL,
        amounts TEXT NOT NULL,
        at REAL NOT NULL,
        open INTEGER NOT NULL,
        checksum INTEGER
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX ledger_holds_owner ON ledger_holds (owner)",
    "CREATE INDEX ledger_holds_open ON ledger_holds (at) WHERE open = 1",
)
# Old reservations are looked for once an hour, among those of runs that have not ended.
FEWER_INDEXES = ("DROP INDEX ledger_holds_open",)
# PostgreSQL writes a new version of a reservation that is settled: in the same page, it writes no
# index.
POSTGRES_ROW_VERSIONS = ("ALTER TABLE ledger_holds SET (fillfactor = 80)",)
# The same for an account: one that is closed changes no index. Closed ones are looked for once an
# hour.
POSTGRES_ACCOUNT_VERSIONS = (
    "DROP INDEX ledger_accounts_closed",
    "ALTER TABLE ledger_accounts SET (fillfactor = 60)",
)
MIGRATIONS = (FIRST_TABLES, TABLES, FEWER_INDEXES, ())
POSTGRES_MIGRATIONS = (
    None,
    None,
    (*FEWER_INDEXES, *POSTGRES_ROW_VERSIONS),
    POSTGRES_ACCOUNT_VERSIONS,
)

StoredLimits = Sequence[tuple[str, int, float]]
"""Limits as they are stored: an array keeps their order."""
_LIMITS = msgspec.json.Decoder(list[tuple[str, int, float]])
_AMOUNTS = msgspec.json.Decoder(dict[str, int])
_RECENT = msgspec.json.Decoder(dict[str, list[LedgerEntry]])
_PATH = msgspec.json.Decoder(tuple[str, ...])
SELECT_ACCOUNTS = (
    "SELECT name, limits, spent, held, recent, touched, closed_at, checksum FROM ledger_accounts"
)
SELECT_HOLDS = "SELECT id, path, amounts, at, open, checksum FROM ledger_holds"
_PUT_ACCOUNT = """
INSERT INTO ledger_accounts (name, limits, spent, held, recent, touched, closed_at, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET
    limits = excluded.limits, spent = excluded.spent, held = excluded.held,
    recent = excluded.recent, touched = excluded.touched, closed_at = excluded.closed_at,
    checksum = excluded.checksum
"""
_PUT_HOLD = """
INSERT INTO ledger_holds (id, owner, path, amounts, at, open, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    owner = excluded.owner, path = excluded.path, amounts = excluded.amounts, at = excluded.at,
    open = excluded.open, checksum = excluded.checksum
"""


def stored_limits(limits: Mapping[str, Limit]) -> list[tuple[str, int, float]]:
    """Limits as they are stored."""
    return [(kind, limit.most, limit.per) for kind, limit in limits.items()]


def read_account(row: Sequence[Any]) -> Account:
    """The account in a row of `SELECT_ACCOUNTS`."""
    name, limits, spent, held, recent, touched, closed_at, checksum = row
    _verify("ledger_accounts", row[:-1], checksum)
    return Account(
        name,
        {kind: Limit(most, per) for kind, most, per in _LIMITS.decode(limits)},
        _AMOUNTS.decode(spent),
        _AMOUNTS.decode(held),
        _RECENT.decode(recent),
        touched,
        closed_at is not None,
    )


def read_hold(row: Sequence[Any]) -> ReservationRecord:
    """The reservation in a row of `SELECT_HOLDS`."""
    id, path, amounts, at, is_open, checksum = row
    _verify("ledger_holds", row[:-1], checksum)
    return ReservationRecord(id, _PATH.decode(path), _AMOUNTS.decode(amounts), at, not is_open)


def select_accounts(connection: Connection, condition: str, values: Sequence[Any]) -> list[Account]:
    """The accounts for a condition, sorted by name."""
    statement = f"{SELECT_ACCOUNTS} {condition} ORDER BY name"
    return [read_account(row) for row in connection.execute(statement, values)]


def verify_rows(connection: Connection) -> None:
    """Raise `DamagedStore` for a row that is not what was written."""
    for table, statement in (
        ("ledger_accounts", SELECT_ACCOUNTS),
        ("ledger_holds", SELECT_HOLDS),
    ):
        for row in connection.execute(statement):
            _verify(table, row[:-1], row[-1])


def put_accounts(connection: Connection, accounts: Iterable[tuple[Account, float | None]]) -> None:
    """Store accounts, each with the time when it was closed."""
    rows: list[Sequence[Any]] = []
    for account, closed_at in accounts:
        row = (
            account.name,
            *account_texts(account),
            float(account.touched),
            None if closed_at is None else float(closed_at),
        )
        rows.append((*row, _checksum(row)))
    connection.executemany(_PUT_ACCOUNT, rows)


def account_texts(account: Account) -> tuple[str, str, str, str]:
    """The columns of an account that are JSON: limits, spent, held and recent."""
    limits = stored_limits(account.limits)
    return (
        encode_json(limits),
        encode_json(account.spent),
        encode_json(account.held),
        encode_json(account.recent),
    )


def put_holds(connection: Connection, holds: Iterable[ReservationRecord]) -> None:
    """Store reservations."""
    rows: list[Sequence[Any]] = []
    for hold in holds:
        path, amounts = encode_json(hold.path), encode_json(hold.amounts)
        row = (hold.id, path, amounts, float(hold.at), int(not hold.settled))
        rows.append((hold.id, hold.owner, *row[1:], _checksum(row)))
    connection.executemany(_PUT_HOLD, rows)


def encode_json(value: object) -> str:
    """A value as it is stored."""
    return msgspec.json.encode(value).decode()


def _checksum(row: Sequence[Any]) -> int:
    """Of the values of a row: SQLite would not notice a flipped bit in one."""
    return zlib.crc32(repr(row).encode())


def _verify(table: str, row: Sequence[Any], checksum: int | None) -> None:
    # PostgreSQL has checksums of its own, and stores none here.
    if checksum is not None and checksum != _checksum(tuple(row)):
        raise DamagedStore(f"the table {table}", f"{row[0]!r} does not match its checksum")


def convert_first_tables(connection: Connection) -> None:
    """Move the rows of the first version of the tables to the present ones."""
    account, hold = msgspec.msgpack.Decoder(Account), msgspec.msgpack.Decoder(ReservationRecord)
    accounts = connection.execute("SELECT state FROM accounts").fetchall()
    holds = connection.execute("SELECT state FROM holds").fetchall()
    if not accounts and not holds:
        return
    found = [account.decode(verify_checksum(state, "the budget ledger")) for (state,) in accounts]
    put_accounts(connection, [(one, one.touched if one.closed else None) for one in found])
    put_holds(
        connection,
        [hold.decode(verify_checksum(state, "the budget ledger")) for (state,) in holds],
    )
    connection.execute("DELETE FROM accounts")
    connection.execute("DELETE FROM holds")
