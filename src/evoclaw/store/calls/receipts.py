"""Stored receipts: the position of a device in its chain, and the receipts of all chains.

The position is written in one transaction with the end of its call: after a crash at any point no
number is used twice, and none is left out.

A chain belongs to a device, and tenants share devices: code that checks chains reads all receipts.
Code that acts for a user or a run uses `ReceiptStore.of` its tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from evoclaw.store.databases.column_compression import compress_by, decompress_by
from evoclaw.store.databases.database import (
    NO_LIMIT,
    Conflict,
    Connection,
    Database,
    Schema,
    add_checksum,
    open_blob,
    verify_checksum,
)
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.steps import Procedure, Step

CHAIN_HEAD_KEY = "receipts"
"""The key under which a journal stores the position of its chain."""


class ChainPosition(Struct, frozen=True):
    """The last receipt of a chain."""

    chain: str = ""
    """Empty if there is no receipt yet."""
    counter: int = 0
    hash: str = ""
    key: str = ""
    """The public key of the signer."""


class UnsignedReport(Protocol):
    """A report whose receipt is unsigned: its position is known only when it is written."""

    def signed_after(self, place: ChainPosition) -> tuple[bytes, ChainPosition]:
        """The report with the receipt that follows a position, and the new position."""
        ...


def read_position(
    connection: Connection, path: Path | str, head: str = CHAIN_HEAD_KEY
) -> ChainPosition:
    """The stored position of a chain; an empty one if there is none."""
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (head,)).fetchone()
    return (
        ChainPosition()
        if found is None
        else msgspec.json.decode(verify_checksum(found[0], path), type=ChainPosition)
    )


def store_position(
    connection: Connection, position: ChainPosition, head: str = CHAIN_HEAD_KEY
) -> None:
    """Store the position of a chain."""
    keep = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2"
    connection.execute(keep, (head, add_checksum(msgspec.json.encode(position))))


class StoredReceipt(Struct, frozen=True):
    """A stored receipt."""

    agent_id: str
    chain: str
    counter: int
    hash: str
    prev: str
    request_id: str
    run_id: str
    tenant: str
    """The tenant that asked for the call."""
    at: float
    """When it arrived, by the clock of the orchestrator."""
    body: str
    signature: str
    flaw: str = ""
    """Why it is invalid; empty if it is valid. Invalid receipts are kept as evidence."""


class Pin(Struct, frozen=True):
    """The pinned public key of a device."""

    agent_id: str
    key: str
    trust: str
    """`pairing`: received when the device was paired; `first use`: it came with its first receipt;
    `here`: the key of this machine."""
    at: float


COLUMNS = (
    "agent_id, chain, counter, hash, prev, request_id, run_id, tenant, at, body, signature, flaw"
)
ADD = f"""
INSERT INTO receipts ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (agent_id, hash, request_id, flaw) DO NOTHING
"""


def _add(connection: Connection, *values: object) -> bool:
    """Whether the receipt was not known."""
    return connection.execute(ADD, values).rowcount > 0


ADD_RECEIPT = Procedure(
    name="add_receipt",
    sqlite=_add,
    # ON CONFLICT writes one more record to the WAL.
    postgres=f"""
BEGIN
    INSERT INTO receipts ({COLUMNS})
    SELECT a->>0, a->>1, (a->>2)::bigint, a->>3, a->>4, a->>5, a->>6, a->>7, (a->>8)::float8,
        decode(a->>9, 'base64'), decode(a->>10, 'base64'), a->>11
    WHERE NOT EXISTS (SELECT 1 FROM receipts WHERE agent_id = a->>0 AND hash = a->>3
        AND request_id = a->>5 AND flaw = a->>11);
    RETURN to_jsonb(FOUND);
EXCEPTION WHEN unique_violation THEN
    RETURN to_jsonb(false);
END
""",
)
# Receipts arrive in the order of their times.
POSTGRES_AGES = (
    "DROP INDEX receipts_came",
    "CREATE INDEX receipts_ages ON receipts USING brin (at) WITH (autosummarize = on)",
)
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
            # The same table as in a journal: it has the position of the chain of this machine.
            "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT",
        ),
        # Bodies that are compressed by the other columns: older versions cannot read them.
        (),
        (),
    ),
    postgres_migrations=(None, None, POSTGRES_AGES),
    checksummed=(("receipts", ("body", "signature")), ("meta", ("value",))),
    procedures=(ADD_RECEIPT,),
)
LIST_CONDITION = """
WHERE seq IN (SELECT seq FROM receipts
    WHERE {whose} AND (?1 = '' OR agent_id = ?1) AND (?2 = '' OR run_id = ?2)
    ORDER BY seq DESC LIMIT ?3) ORDER BY seq
"""
FIND_CONDITION = """
WHERE {whose} AND (request_id = ?1 OR (?2 <> '' AND substr(hash, 1, length(?2)) = ?2)) ORDER BY seq
"""
OUTCOMES_WITHOUT_RECEIPT = """
SELECT outcome FROM commands WHERE settled_at >= ?1 AND outcome IS NOT NULL
    AND request_id NOT IN (SELECT request_id FROM receipts WHERE at >= ?1 AND flaw = '')
"""
# The last receipt of each chain stays, and what is outside any chain goes.
DELETE_OLD = """
DELETE FROM receipts WHERE seq IN (
    SELECT seq FROM receipts AS old WHERE at < ?1 AND (counter = 0 OR flaw <> '' OR EXISTS (
        SELECT 1 FROM receipts AS later WHERE later.agent_id = old.agent_id
            AND later.chain = old.chain AND later.counter > old.counter AND later.flaw = ''))
    ORDER BY at LIMIT ?2)
"""
PRUNE_BATCH_ROWS = 500
"""Receipts that are deleted in one transaction."""
CHAIN_GAPS = """
SELECT counter + 1, following - 1 FROM (
    SELECT counter, lead(counter) OVER (ORDER BY counter) AS following FROM (
        SELECT DISTINCT counter FROM receipts
        WHERE agent_id = ?1 AND chain = ?2 AND counter > 0 AND flaw = '') AS places) AS pairs
WHERE following > counter + 1
"""


class ReceiptStore:
    """All receipts, the pinned keys, and the chain of this machine."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._clock = clock
        self._heads: dict[str, ChainPosition] = {}
        """The positions of the chains of this process, by machine."""

    @classmethod
    async def open(
        cls, path: Path, *, durable: bool = True, clock: Callable[[], float] = time.time
    ) -> ReceiptStore:
        """Open or create a store; see `SqliteDatabase.open`, also for its errors."""
        return cls(await SqliteDatabase.open(path, SCHEMA, durable=durable), clock)

    async def __aenter__(self) -> ReceiptStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish writing and close the file."""
        await self.database.close()

    def of(self, tenant: str) -> TenantReceipts:
        """The receipts of one tenant: all that its users and runs may see."""
        return TenantReceipts(self.database, tenant)

    async def add(self, *receipts: StoredReceipt) -> None:
        """Store receipts; a known one is ignored."""
        rows = [_values(receipt) for receipt in receipts]
        await self.database.write(lambda c: c.executemany(ADD, rows))

    def add_later(self, receipt: StoredReceipt) -> None:
        """Store a receipt with the next commit; a known one is ignored."""
        self.database.defer(Step(ADD_RECEIPT, _values(receipt)))

    async def outcomes_without_receipt(self, since: float) -> list[bytes]:
        """The outcomes in the command store since a time that have no receipt."""
        found = await self.database.read(
            lambda c: c.execute(OUTCOMES_WITHOUT_RECEIPT, (since,)).fetchall()
        )
        return [open_blob(self.database, row[0]) for row in found]

    async def sign(
        self,
        make: Callable[[ChainPosition], tuple[StoredReceipt, ChainPosition]],
        *,
        machine: str = "",
        wait: bool = True,
    ) -> StoredReceipt:
        """Add the next receipt to the chain of a machine.

        Its processes share the chain in a file. On a server each process has a chain of its own,
        whose position it need not look up.

        Args:
            make: Signs the receipt that follows a position; returns it and the new position.
            machine: The machine, if several keep their chains here.
            wait: Whether to wait for the commit; see `Database.write`.
        """
        if self.database.dialect != "sqlite":
            receipt, self._heads[machine] = make(self._heads.get(machine, ChainPosition()))
            if wait:
                await self.add(receipt)
            else:
                self.add_later(receipt)
            return receipt
        head, returned = (
            f"{CHAIN_HEAD_KEY} {machine}" if machine else CHAIN_HEAD_KEY,
            list[StoredReceipt](),
        )

        def work(connection: Connection) -> StoredReceipt:
            receipt, position = make(read_position(connection, self.database.name, head))
            if returned and returned != [receipt]:
                raise Conflict("another receipt took the position of one that was returned already")
            connection.execute(ADD, _values(receipt))
            store_position(connection, position, head)
            return receipt

        returned.append(await self.database.write(work, wait=wait))
        return returned[0]

    async def at(self, agent_id: str, chain: str, counter: int) -> list[StoredReceipt]:
        """The valid receipts at a position of a chain and next to it."""
        return await self._rows(
            "WHERE agent_id = ? AND chain = ? AND counter BETWEEN ? AND ? AND flaw = ''",
            agent_id,
            chain,
            max(counter - 1, 1),
            counter + 1,
        )

    async def list_receipts(
        self, *, agent_id: str = "", run_id: str = "", limit: int = NO_LIMIT
    ) -> list[StoredReceipt]:
        """The newest receipts, sorted by device and position."""
        values = (agent_id, run_id, limit)
        return _sorted_by_chain(await self._rows(LIST_CONDITION.format(whose="true"), *values))

    async def find(self, id: str) -> list[StoredReceipt]:
        """Receipts by short id, hash prefix, or request id."""
        return await self._rows(FIND_CONDITION.format(whose="true"), *_search_keys(id))

    async def gaps(self, agent_id: str, chain: str) -> list[tuple[int, int]]:
        """The missing positions of a chain before its last one, as ranges."""
        found = await self.database.read(
            lambda c: c.execute(CHAIN_GAPS, (agent_id, chain)).fetchall()
        )
        return [(first, last) for first, last in found]

    async def missing(
        self, agent_id: str, chain: str, first: int, last: int
    ) -> tuple[int, int] | None:
        """The first and the last missing position in a range of a chain, if any."""
        statement = """SELECT DISTINCT counter FROM receipts
            WHERE agent_id = ? AND chain = ? AND counter BETWEEN ? AND ? AND flaw = ''"""
        values = (agent_id, chain, first, last)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        stored = {counter for (counter,) in rows}
        while first in stored:
            first += 1
        while last in stored:
            last -= 1
        return (first, last) if first <= last else None

    async def chains(self) -> list[tuple[str, str, int]]:
        """Every chain: its device, its name, and its last known position."""
        statement = """SELECT agent_id, chain, max(counter) FROM receipts
            WHERE counter > 0 AND flaw = '' GROUP BY agent_id, chain ORDER BY min(seq)"""
        found = await self.database.read(lambda c: c.execute(statement).fetchall())
        return [(agent_id, chain, top) for agent_id, chain, top in found]

    async def pin(self, agent_id: str, key: str, trust: str) -> Pin:
        """Pin the key of a device; a key from `first use` never replaces another."""
        now = self._clock()
        keep = """INSERT INTO pins VALUES (?1, ?2, ?3, ?4) ON CONFLICT (agent_id)
            DO UPDATE SET key = ?2, trust = ?3, at = ?4 WHERE ?3 <> 'first use'"""

        def work(connection: Connection) -> Pin:
            connection.execute(keep, (agent_id, key, trust, now))
            find = "SELECT agent_id, key, trust, at FROM pins WHERE agent_id = ?"
            return Pin(*connection.execute(find, (agent_id,)).fetchone())

        return await self.database.write(work)

    async def unpin(self, agent_id: str) -> None:
        """Delete the pin of a device; the next key that it uses or is paired with is pinned."""
        delete = "DELETE FROM pins WHERE agent_id = ?"
        await self.database.write(lambda c: c.execute(delete, (agent_id,)))

    async def pins(self) -> list[Pin]:
        """The pinned keys of all devices."""
        statement = "SELECT agent_id, key, trust, at FROM pins ORDER BY agent_id"
        found = await self.database.read(lambda c: c.execute(statement).fetchall())
        return [Pin(*row) for row in found]

    async def prune(self, before: float) -> int:
        """Delete receipts older than a time; how many. The last one of each chain is kept."""
        values, deleted = (before, PRUNE_BATCH_ROWS), 0
        while count := await self.database.write(lambda c: c.execute(DELETE_OLD, values).rowcount):
            deleted += count
        return deleted

    async def _rows(self, condition: str, *values: object) -> list[StoredReceipt]:
        return await _rows(self.database, condition, values)


class TenantReceipts:
    """The receipts of one tenant; a chain has gaps where others asked."""

    def __init__(self, database: Database, tenant: str) -> None:
        self.tenant, self._database = tenant, database

    async def list_receipts(
        self, *, agent_id: str = "", run_id: str = "", limit: int = NO_LIMIT
    ) -> list[StoredReceipt]:
        """The newest receipts, sorted by device and position."""
        values = (agent_id, run_id, limit, self.tenant)
        return _sorted_by_chain(
            await _rows(self._database, LIST_CONDITION.format(whose="tenant = ?4"), values)
        )

    async def find(self, id: str) -> list[StoredReceipt]:
        """Receipts by short id, hash prefix, or request id."""
        values = (*_search_keys(id), self.tenant)
        return await _rows(self._database, FIND_CONDITION.format(whose="tenant = ?3"), values)


async def _rows(
    database: Database, condition: str, values: tuple[object, ...]
) -> list[StoredReceipt]:
    statement = f"SELECT {COLUMNS} FROM receipts {condition}"
    found = await database.read(lambda c: c.execute(statement, values).fetchall())
    return [_row(columns, database.name) for columns in found]


def _row(columns: tuple[Any, ...], name: str) -> StoredReceipt:
    agent, chain, counter, hash, prev, request, run, tenant, at, body, signature, flaw = columns
    return StoredReceipt(
        *(agent, chain, counter, hash, prev, request, run, tenant, at),
        decompress_by(
            _body_template(agent, chain, counter, prev, request, run, tenant),
            verify_checksum(body, name),
        ).decode(),
        verify_checksum(signature, name).decode(),
        flaw,
    )


def _sorted_by_chain(found: list[StoredReceipt]) -> list[StoredReceipt]:
    return sorted(found, key=lambda receipt: (receipt.agent_id, receipt.chain, receipt.counter))


def _search_keys(id: str) -> tuple[str, str]:
    """The request id and the hash prefix that an id may be; the prefix is empty if it is not."""
    start = id.rpartition("-")[2] if id.startswith("r") and "-" in id else id
    return id, start if len(start) >= 6 and start.isalnum() else ""


def _values(receipt: StoredReceipt) -> tuple[object, ...]:
    *rest, body, signature, flaw = msgspec.structs.astuple(receipt)
    agent, chain, counter, _, prev, request, run, tenant, _ = rest
    template = _body_template(agent, chain, counter, prev, request, run, tenant)
    packed = compress_by(template, body.encode())
    return (*rest, add_checksum(packed), add_checksum(signature.encode()), flaw)


def _body_template(
    agent_id: str, chain: str, counter: int, prev: str, request: str, run: str, tenant: str
) -> bytes:
    """The body of a receipt, as far as the other columns have it; never changed: see `compress_by`.

    Texts that other receipts have come first, those of this one last.
    """
    return (
        '"error_type":"not_found","exit_code":null,"isolation":"","started_at":null,'
        '"status":"error","tool":"file_read"'
        f'{{"agent_id":"{agent_id}","args_sha256":"","boot_id":"","chain":"{chain}",'
        f'"counter":{counter},"ended_at":17,"epoch":1,"error_type":"","exit_code":0,'
        f'"grant_sha256":"","isolation":"","key":"","prev":"{prev}","request_id":"{request}",'
        f'"result_sha256":"","run_id":"{run}","started_at":17,"status":"success",'
        f'"tenant":"{tenant}","tool":"bash","tool_hash":"","v":1}}'
    ).encode(errors="replace")
