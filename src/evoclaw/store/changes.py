"""Whether anything was written to a database, by whomever: told without reading a table."""

from __future__ import annotations

from typing import TypeAlias

from evoclaw.store.database import Database

Mark: TypeAlias = tuple[int, str]
"""Another one after every commit, here or in another process."""

# SQLite counts the commits of others only; PostgreSQL knows which transactions are over.
_ASK = {"sqlite": "PRAGMA data_version", "postgres": "SELECT CAST(pg_current_snapshot() AS text)"}


async def mark_of(database: Database) -> Mark:
    """The mark of all that is committed by now."""
    commits, statement = database.commits, _ASK[database.dialect]
    row = await database.read(lambda connection: connection.execute(statement).fetchone())
    return commits, str(row[0])
