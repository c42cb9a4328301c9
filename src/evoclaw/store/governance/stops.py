"""The stops that people set, for all orchestrators that share a database."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    add_checksum,
    verify_checksum,
)

SCHEMA = Schema(
    "stops",
    (
        (
            """CREATE TABLE stops (
                kind TEXT NOT NULL,
                name TEXT NOT NULL,
                state BLOB NOT NULL,
                PRIMARY KEY (kind, name)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
    checksummed=(("stops", ("state",)),),
)
_PUT = """
INSERT INTO stops (kind, name, state) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET state = excluded.state
"""


class StopStore:
    """The encoded stops."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Sequence[bytes]:
        """All stops, in a fixed order."""

        def work(connection: Connection) -> list[bytes]:
            rows = connection.execute("SELECT state FROM stops ORDER BY kind, name")
            return [verify_checksum(state, self._database.name) for (state,) in rows]

        return await self._database.read(work, allow_stale=True)  # stops are never deferred

    async def put(self, kind: str, name: str, state: bytes) -> None:
        """Store a stop; an earlier one for the same kind and name is replaced."""
        await self._database.write(lambda c: c.execute(_PUT, (kind, name, add_checksum(state))))

    async def release(self, kind: str, name: str) -> None:
        """Delete a stop."""
        statement = "DELETE FROM stops WHERE kind = ? AND name = ?"
        await self._database.write(lambda c: c.execute(statement, (kind, name)))
