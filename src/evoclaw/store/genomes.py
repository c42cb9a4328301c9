"""The lineages of genomes: signed entries, one chain for each agent; nothing is ever changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    StoreError,
    open_blob,
    seal_blob,
)

SCHEMA = Schema(
    "genome store",
    (
        (
            # `version` is null for entries that make no version, such as an evaluation.
            """CREATE TABLE genome_entries (
                agent TEXT NOT NULL,
                number INTEGER NOT NULL,
                version INTEGER,
                digest TEXT NOT NULL,
                hash TEXT NOT NULL,
                signature TEXT NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (agent, number)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX genome_entries_by_digest ON genome_entries (agent, digest)",
        ),
        # A campaign adds many entries that make no version.
        (
            "CREATE INDEX genome_versions ON genome_entries (agent, number) "
            "WHERE version IS NOT NULL",
        ),
        # Entries whose audit record may be missing: older ones were recorded when they were stored.
        (
            """CREATE TABLE genome_unaudited (
                agent TEXT NOT NULL,
                number INTEGER NOT NULL,
                PRIMARY KEY (agent, number)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
    checksummed=(("genome_entries", ("body",)),),
    sealed=True,
)
_COLUMNS = "agent, number, version, digest, hash, signature, body"
ENTRIES = f"SELECT {_COLUMNS} FROM genome_entries WHERE agent = ? ORDER BY number"
LAST = f"SELECT {_COLUMNS} FROM genome_entries WHERE agent = ? ORDER BY number DESC LIMIT 1"
LAST_VERSION = (
    f"SELECT {_COLUMNS} FROM genome_entries WHERE agent = ? AND version IS NOT NULL "
    "ORDER BY number DESC LIMIT 1"
)
BY_VERSION = f"SELECT {_COLUMNS} FROM genome_entries WHERE agent = ? AND version = ?"
BY_DIGEST = (
    f"SELECT {_COLUMNS} FROM genome_entries WHERE agent = ? AND digest = ? ORDER BY number LIMIT 1"
)
LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM genome_entries WHERE agent = ?"
CURRENT = """
SELECT e.agent, e.digest FROM genome_entries e JOIN (
    SELECT agent, max(number) AS number FROM genome_entries WHERE version IS NOT NULL GROUP BY agent
) v ON e.agent = v.agent AND e.number = v.number
"""
HAS_VERSION = "SELECT 1 FROM genome_entries WHERE agent = ? AND version IS NOT NULL LIMIT 1"
PUT = f"""
INSERT INTO genome_entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (agent, number) DO NOTHING
"""
UNAUDITED = f"""
SELECT {_COLUMNS} FROM genome_entries WHERE agent = ? AND number IN (
    SELECT number FROM genome_unaudited WHERE agent = ?
) ORDER BY number
"""
PUT_UNAUDITED = "INSERT INTO genome_unaudited (agent, number) VALUES (?, ?)"
DELETE_UNAUDITED = "DELETE FROM genome_unaudited WHERE agent = ? AND number = ?"


def has_genome(path: Path, agent: str) -> bool:
    """Whether an agent has a genome in an SQLite database, without opening it as a store.

    False if there is no such file, or no table of genomes in it.
    """
    if not path.is_file():
        return False
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(HAS_VERSION, (agent,)).fetchone() is not None
    except sqlite3.OperationalError:
        return False  # a database that never had genomes
    finally:
        connection.close()


class StoredEntry(Struct, frozen=True):
    """An entry of a lineage."""

    agent: str
    number: int
    """Its position in the lineage of its agent, from 1."""
    version: int | None
    """The version of the genome that it makes; None for other entries."""
    digest: str
    """That of the genome that it is about."""
    hash: str
    signature: str
    body: bytes
    """Canonical JSON: what is hashed and signed."""


class LineageHead(Struct, frozen=True):
    """Where a lineage ends."""

    last: StoredEntry | None
    current: StoredEntry | None
    """The last entry that makes a version."""
    restored: StoredEntry | None = None
    """The entry of the version that was asked for."""


class GenomeChanged(StoreError):
    """Another process added to the lineage at the same moment; nothing was stored."""

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"the genome of {agent!r} was changed at the same moment; read it, and try again"
        )


class GenomeStore:
    """The lineages of all agents."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def append(
        self,
        agent: str,
        make: Callable[[LineageHead], StoredEntry | None],
        *,
        version: int | None = None,
        to_audit: bool = True,
    ) -> StoredEntry | None:
        """Add an entry in one transaction.

        Args:
            agent: Whose lineage.
            make: Makes the entry, given the end of the lineage; None adds nothing.
            version: A version that `make` needs.
            to_audit: Whether it is `unaudited` until `set_audited`.
        """

        def work(connection: Connection) -> StoredEntry | None:
            last = self._one(connection, LAST, agent)
            current = self._one(connection, LAST_VERSION, agent)
            wanted = None if version is None else self._one(connection, BY_VERSION, agent, version)
            entry = make(LineageHead(last, current, wanted))
            if entry is None:
                return None
            body = seal_blob(self.database, entry.body)
            columns = (entry.agent, entry.number, entry.version, entry.digest, entry.hash)
            if connection.execute(PUT, (*columns, entry.signature, body)).rowcount != 1:
                raise GenomeChanged(agent)
            if to_audit:
                connection.execute(PUT_UNAUDITED, (entry.agent, entry.number))
            return entry

        return await self.database.write(work)

    async def entries(self, agent: str) -> Sequence[StoredEntry]:
        """The lineage of an agent, the oldest entry first."""
        rows = await self.database.read(lambda c: c.execute(ENTRIES, (agent,)).fetchall())
        return [self._entry(row) for row in rows]

    async def unaudited(self, agent: str) -> Sequence[StoredEntry]:
        """The entries of an agent whose audit record may be missing, the oldest first."""
        rows = await self.database.read(lambda c: c.execute(UNAUDITED, (agent, agent)).fetchall())
        return [self._entry(row) for row in rows]

    async def set_audited(self, agent: str, numbers: Iterable[int]) -> None:
        """Note that these entries have their audit records."""
        rows = [(agent, number) for number in numbers]
        await self.database.write(lambda c: c.executemany(DELETE_UNAUDITED, rows) and None)

    async def by_digest(self, agent: str, digest: str) -> StoredEntry | None:
        """The first entry with a genome of this content."""
        return await self.database.read(lambda c: self._one(c, BY_DIGEST, agent, digest))

    async def current(self) -> dict[str, str]:
        """The digest of the current genome of each agent that has a version of one."""
        rows = await self.database.read(lambda c: c.execute(CURRENT).fetchall(), allow_stale=True)
        return dict(rows)

    async def last_number(self, agent: str) -> int:
        """The number of the last entry of a lineage; 0 without one."""
        row = await self.database.read(lambda c: c.execute(LAST_NUMBER, (agent,)).fetchone())
        return row[0]

    def _one(self, connection: Connection, statement: str, *values: object) -> StoredEntry | None:
        row = connection.execute(statement, values).fetchone()
        return None if row is None else self._entry(row)

    def _entry(self, row: Sequence[Any]) -> StoredEntry:
        *columns, body = row
        return StoredEntry(*columns, body=open_blob(self.database, body))
