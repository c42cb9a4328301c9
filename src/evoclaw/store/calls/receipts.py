"""Receipts that are kept: a device's place in its chain, and an orchestrator's book of all chains.

The place is written with the end of the call it belongs to, in one transaction: whatever dies in
between, no number is used twice and none is left out.

A chain is a device's, and a device may be shared: who checks chains sees all of it. Whoever asks
for a person or a run asks `ReceiptStore.of` its tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from evoclaw.store.databases.database import (
    EVERY,
    Conflict,
    Connection,
    Database,
    Schema,
    sealed,
    unsealed,
)
from evoclaw.store.databases.sqlite import SqliteDatabase

HEAD = "receipts"
"""The key of a journal's place in its chain."""


class Place(Struct, frozen=True):
    """The last receipt of a chain."""

    chain: str = ""
    """Empty when there is none yet."""
    counter: int = 0
    hash: str = ""
    key: str = ""
    """The public key of whoever signed it."""


class Draft(Protocol):
    """A report whose receipt is not signed yet: its place is known only when it is written."""

    def signed_after(self, place: Place) -> tuple[bytes, Place]:
        """The report with the receipt that follows this place, and the place that it has."""
        ...


def finish_in_chain(
    connection: Connection,
    statement: str,
    end: tuple[str, float, str],
    draft: Draft,
    path: Path | str,
) -> bool:
    """Note how a call ended, with the next receipt of the chain; False if it had ended already."""
    state, now, request_id = end
    is_open = "SELECT 1 FROM calls WHERE request_id = ? AND finished IS NULL"
    if connection.execute(is_open, (request_id,)).fetchone() is None:
        return False
    report, place = draft.signed_after(_place(connection, path))
    connection.execute(statement, (state, sealed(report), now, request_id))
    _keep_place(connection, place)
    return True


def _place(connection: Connection, path: Path | str, head: str = HEAD) -> Place:
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (head,)).fetchone()
    return Place() if found is None else msgspec.json.decode(unsealed(found[0], path), type=Place)


def _keep_place(connection: Connection, place: Place, head: str = HEAD) -> None:
    keep = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2"
    connection.execute(keep, (head, sealed(msgspec.json.encode(place))))


class Kept(Struct, frozen=True):
    """A receipt in the book."""

    agent_id: str
    chain: str
    counter: int
    hash: str
    prev: str
    request_id: str
    run_id: str
    tenant: str
    """Who asked for what it is of."""
    at: float
    """When it came, by our own clock."""
    body: str
    signature: str
    flaw: str = ""
    """Why it does not hold, if it does not: kept all the same, as evidence of that."""


class Pin(Struct, frozen=True):
    """The key that a device is known by."""

    agent_id: str
    key: str
    trust: str
    """`pairing`: it was told when the device joined; `first use`: it came with its first receipt;
    `here`: it is this machine's own."""
    at: float


SCHEMA = Schema(
    "receipt book",
    (
        (
            """CREATE TABLE receipts (
                seq INTEGER PRIMARY KEY,
                agent_id TEXT NOT NULL, chain TEXT NOT NULL, counter INTEGER NOT NULL,
                hash TEXT NOT NULL, prev TEXT NOT NULL,
                request_id TEXT NOT NULL, run_id TEXT NOT NULL, tenant TEXT NOT NULL,
                at REAL NOT NULL, body BLOB NOT NULL, signature BLOB NOT NULL, flaw TEXT NOT NULL,
                UNIQUE (agent_id, hash, request_id, flaw)
            ) STRICT""",
            "CREATE INDEX receipts_chain ON receipts (agent_id, chain, counter)",
            "CREATE INDEX receipts_of ON receipts (tenant, run_id)",
            "CREATE INDEX receipts_came ON receipts (at)",
            """CREATE TABLE pins (
                agent_id TEXT PRIMARY KEY NOT NULL, key TEXT NOT NULL, trust TEXT NOT NULL,
                at REAL NOT NULL
            ) STRICT""",
            # A journal's table: this machine's own chain has its place where its receipts are.
            "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT",
        ),
    ),
    sealed=(("receipts", ("body", "signature")), ("meta", ("value",))),
)
COLUMNS = (
    "agent_id, chain, counter, hash, prev, request_id, run_id, tenant, at, body, signature, flaw"
)
ADD = f"""
INSERT INTO receipts ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (agent_id, hash, request_id, flaw) DO NOTHING
"""
LISTED = """
WHERE seq IN (SELECT seq FROM receipts
    WHERE {whose} AND (?1 = '' OR agent_id = ?1) AND (?2 = '' OR run_id = ?2)
    ORDER BY seq DESC LIMIT ?3) ORDER BY seq
"""
FOUND = """
WHERE {whose} AND (request_id = ?1 OR (?2 <> '' AND substr(hash, 1, length(?2)) = ?2)) ORDER BY seq
"""
UNBOOKED = """
SELECT outcome FROM commands WHERE settled_at >= ?1 AND outcome IS NOT NULL
    AND request_id NOT IN (SELECT request_id FROM receipts WHERE at >= ?1 AND flaw = '')
"""
HOLES = """
SELECT counter + 1, following - 1 FROM (
    SELECT counter, lead(counter) OVER (ORDER BY counter) AS following FROM (
        SELECT DISTINCT counter FROM receipts
        WHERE agent_id = ?1 AND chain = ?2 AND counter > 0 AND flaw = '') AS places) AS pairs
WHERE following > counter + 1
"""


class ReceiptStore:
    """The receipts that came, the keys they are checked with, and this machine's own chain."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._clock = clock

    @classmethod
    async def open(
        cls, path: Path, *, durable: bool = True, clock: Callable[[], float] = time.time
    ) -> ReceiptStore:
        """Open or create a book; see `SqliteDatabase.open`, also on what raises."""
        return cls(await SqliteDatabase.open(path, SCHEMA, durable=durable), clock)

    async def __aenter__(self) -> ReceiptStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish writing and close the file."""
        await self.database.close()

    def of(self, tenant: str) -> TenantReceipts:
        """The receipts of what one tenant asked for: all that its people and its runs may see."""
        return TenantReceipts(self.database, tenant)

    async def add(self, *kept: Kept) -> None:
        """Keep receipts; the same one again is no news."""
        rows = [_values(one) for one in kept]
        await self.database.write(lambda c: c.executemany(ADD, rows))

    async def unbooked(self, since: float) -> list[bytes]:
        """The outcomes in the command store beside it that came after a time without a receipt."""
        found = await self.database.read(lambda c: c.execute(UNBOOKED, (since,)).fetchall())
        return [unsealed(row[0], self.database.name) for row in found]

    async def sign(
        self, make: Callable[[Place], tuple[Kept, Place]], *, machine: str = "", wait: bool = True
    ) -> Kept:
        """Add the next receipt of a machine's own chain; several of its processes may share it.

        Args:
            make: Signs what follows a place, and says which place that has.
            machine: Which one, if several keep their chains here.
            wait: Whether for the commit; see `Database.write`.
        """
        head, told = f"{HEAD} {machine}" if machine else HEAD, list[Kept]()

        def work(connection: Connection) -> Kept:
            kept, place = make(_place(connection, self.database.name, head))
            if told and told != [kept]:
                raise Conflict("another receipt took the place of one that was handed out")
            connection.execute(ADD, _values(kept))
            _keep_place(connection, place, head)
            return kept

        told.append(await self.database.write(work, wait=wait))
        return told[0]

    async def at(self, agent_id: str, chain: str, counter: int) -> list[Kept]:
        """The sound receipts in one place of a chain and beside it."""
        return await self._rows(
            "WHERE agent_id = ? AND chain = ? AND counter BETWEEN ? AND ? AND flaw = ''",
            agent_id,
            chain,
            max(counter - 1, 1),
            counter + 1,
        )

    async def listed(
        self, *, agent_id: str = "", run_id: str = "", limit: int = EVERY
    ) -> list[Kept]:
        """Receipts, by device and in their order; of so many, the newest."""
        values = (agent_id, run_id, limit)
        return _in_order(await self._rows(LISTED.format(whose="true"), *values))

    async def find(self, id: str) -> list[Kept]:
        """Receipts by their short id, the beginning of their hash, or their request."""
        return await self._rows(FOUND.format(whose="true"), *_names(id))

    async def holes(self, agent_id: str, chain: str) -> list[tuple[int, int]]:
        """Places of a chain that nothing came for, though something came for later ones."""
        found = await self.database.read(lambda c: c.execute(HOLES, (agent_id, chain)).fetchall())
        return [(first, last) for first, last in found]

    async def missing(
        self, agent_id: str, chain: str, first: int, last: int
    ) -> tuple[int, int] | None:
        """The first and the last of some places of a chain that nothing came for, if any."""
        statement = """SELECT DISTINCT counter FROM receipts
            WHERE agent_id = ? AND chain = ? AND counter BETWEEN ? AND ? AND flaw = ''"""
        values = (agent_id, chain, first, last)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        came = {counter for (counter,) in rows}
        while first in came:
            first += 1
        while last in came:
            last -= 1
        return (first, last) if first <= last else None

    async def chains(self) -> list[tuple[str, str, int]]:
        """Every chain: whose, its name, and the last place that is known of it."""
        statement = """SELECT agent_id, chain, max(counter) FROM receipts
            WHERE counter > 0 AND flaw = '' GROUP BY agent_id, chain ORDER BY min(seq)"""
        found = await self.database.read(lambda c: c.execute(statement).fetchall())
        return [(agent_id, chain, top) for agent_id, chain, top in found]

    async def pin(self, agent_id: str, key: str, trust: str) -> Pin:
        """Know a device by this key from now on, unless it is known by one as good already."""
        now = self._clock()
        keep = """INSERT INTO pins VALUES (?1, ?2, ?3, ?4) ON CONFLICT (agent_id)
            DO UPDATE SET key = ?2, trust = ?3, at = ?4 WHERE ?3 <> 'first use'"""

        def work(connection: Connection) -> Pin:
            connection.execute(keep, (agent_id, key, trust, now))
            find = "SELECT agent_id, key, trust, at FROM pins WHERE agent_id = ?"
            return Pin(*connection.execute(find, (agent_id,)).fetchone())

        return await self.database.write(work)

    async def forget(self, agent_id: str) -> None:
        """Let a device be known by another key: the next one it uses, or is paired with."""
        gone = "DELETE FROM pins WHERE agent_id = ?"
        await self.database.write(lambda c: c.execute(gone, (agent_id,)))

    async def pins(self) -> list[Pin]:
        """The keys that devices are known by."""
        statement = "SELECT agent_id, key, trust, at FROM pins ORDER BY agent_id"
        found = await self.database.read(lambda c: c.execute(statement).fetchall())
        return [Pin(*row) for row in found]

    async def prune(self, before: float) -> int:
        """Forget what came before a time; how many. The last of each chain stays, as its head."""
        gone = """DELETE FROM receipts WHERE at < ? AND seq NOT IN
            (SELECT max(seq) FROM receipts WHERE flaw = '' GROUP BY agent_id, chain)"""
        return await self.database.write(lambda c: c.execute(gone, (before,)).rowcount)

    async def _rows(self, condition: str, *values: object) -> list[Kept]:
        return await _rows(self.database, condition, values)


class TenantReceipts:
    """The receipts of what one tenant asked for; a chain has gaps where others asked."""

    def __init__(self, database: Database, tenant: str) -> None:
        self.tenant, self._database = tenant, database

    async def listed(
        self, *, agent_id: str = "", run_id: str = "", limit: int = EVERY
    ) -> list[Kept]:
        """Receipts, by device and in their order; of so many, the newest."""
        values = (agent_id, run_id, limit, self.tenant)
        return _in_order(await _rows(self._database, LISTED.format(whose="tenant = ?4"), values))

    async def find(self, id: str) -> list[Kept]:
        """Receipts by their short id, the beginning of their hash, or their request."""
        values = (*_names(id), self.tenant)
        return await _rows(self._database, FOUND.format(whose="tenant = ?3"), values)


async def _rows(database: Database, condition: str, values: tuple[object, ...]) -> list[Kept]:
    statement = f"SELECT {COLUMNS} FROM receipts {condition}"
    found = await database.read(lambda c: c.execute(statement, values).fetchall())
    return [_row(columns, database.name) for columns in found]


def _row(columns: tuple[Any, ...], name: str) -> Kept:
    agent, chain, counter, hash, prev, request, run, tenant, at, body, signature, flaw = columns
    return Kept(
        *(agent, chain, counter, hash, prev, request, run, tenant, at),
        unsealed(body, name).decode(),
        unsealed(signature, name).decode(),
        flaw,
    )


def _in_order(found: list[Kept]) -> list[Kept]:
    return sorted(found, key=lambda one: (one.agent_id, one.chain, one.counter))


def _names(id: str) -> tuple[str, str]:
    """What a receipt may be asked for by: its request, and the beginning of its hash if it is."""
    start = id.rpartition("-")[2] if id.startswith("r") and "-" in id else id
    return id, start if len(start) >= 6 and start.isalnum() else ""


def _values(kept: Kept) -> tuple[object, ...]:
    *rest, body, signature, flaw = msgspec.structs.astuple(kept)
    return (*rest, sealed(body.encode()), sealed(signature.encode()), flaw)
