"""What was written to a database, by whomever: told without reading more than changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from evoclaw.store.databases.database import Connection, Database

Mark: TypeAlias = tuple[int, str]
"""Another one after every commit, here or in another process."""
Stands: TypeAlias = tuple[Any, ...]
"""How a run stands: another one whenever something of it changed that is shown."""

# SQLite counts the commits of others only; PostgreSQL knows which transactions are over.
_ASK = {"sqlite": "PRAGMA data_version", "postgres": "SELECT CAST(pg_current_snapshot() AS text)"}
_STANDS = (
    "SELECT id, CASE WHEN epoch > 0 THEN 1 ELSE 0 END, stop, turns, calls, tokens_in, tokens_out, "
    "cost, ended_at FROM runs WHERE tenant = ? "
)
_NEWEST = f"{_STANDS} ORDER BY seq DESC LIMIT ?"
_OPEN = f"{_STANDS} AND stop IS NULL ORDER BY seq DESC LIMIT ?"
ENDING = 2
"""Where in how a run stands it says why it stopped."""


async def mark_of(database: Database) -> Mark:
    """The mark of all that is committed by now."""
    commits, statement = database.commits, _ASK[database.dialect]
    row = await database.read(lambda connection: connection.execute(statement).fetchone())
    return commits, str(row[0])


async def stands_of(
    database: Database, tenant: str, newest: int, open_: int, also: Collection[str]
) -> dict[str, Stands]:
    """How the runs of a tenant stand, by id, the newest first.

    Args:
        database: With the schema of the session store.
        tenant: Whose.
        newest: How many of the newest.
        open_: How many of those that are queued or go on.
        also: And which others.
    """

    def work(connection: Connection) -> dict[str, Stands]:
        found = {row[0]: tuple(row) for row in connection.execute(_NEWEST, (tenant, newest))}
        found |= {row[0]: tuple(row) for row in connection.execute(_OPEN, (tenant, open_))}
        if rest := [one for one in also if one not in found]:
            named = f"{_STANDS} AND id IN ({', '.join('?' * len(rest))})"
            found |= {row[0]: tuple(row) for row in connection.execute(named, (tenant, *rest))}
        return found

    return await database.read(work)
