"""Detects what any process changed in a database, without reading unchanged rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from evoclaw.store.databases.database import Connection, Database

Mark: TypeAlias = tuple[int, str]
"""A value that differs after every commit, of this or another process."""
Stands: TypeAlias = tuple[Any, ...]
"""The status of a run: differs whenever something changed that views show."""

# SQLite counts only the commits of others; PostgreSQL knows which transactions have ended.
_ASK = {"sqlite": "PRAGMA data_version", "postgres": "SELECT CAST(pg_current_snapshot() AS text)"}
_STANDS = (
    "SELECT id, CASE WHEN epoch > 0 THEN 1 ELSE 0 END, stop, turns, calls, tokens_in, tokens_out, "
    "cost, ended_at FROM runs WHERE tenant = ? "
)
_NEWEST = f"{_STANDS} ORDER BY seq DESC LIMIT ?"
_OPEN = f"{_STANDS} AND stop IS NULL ORDER BY seq DESC LIMIT ?"
ENDING = 2
"""The position of the stop reason in a row."""


async def mark_of(database: Database) -> Mark:
    """The mark of everything committed so far."""
    commits, statement = database.commits, _ASK[database.dialect]
    row = await database.read(lambda connection: connection.execute(statement).fetchone())
    return commits, str(row[0])


async def stands_of(
    database: Database, tenant: str, newest: int, open_: int, also: Collection[str]
) -> dict[str, Stands]:
    """The status of runs of a tenant, by id, the newest first.

    Args:
        database: With the schema of the session store.
        tenant: The tenant.
        newest: How many of the newest runs.
        open_: How many of the queued and running runs.
        run_ids: The ids of further runs.
    """

    def work(connection: Connection) -> dict[str, Stands]:
        found = {row[0]: tuple(row) for row in connection.execute(_NEWEST, (tenant, newest))}
        found |= {row[0]: tuple(row) for row in connection.execute(_OPEN, (tenant, open_))}
        if rest := [run_id for run_id in also if run_id not in found]:
            named = f"{_STANDS} AND id IN ({', '.join('?' * len(rest))})"
            found |= {row[0]: tuple(row) for row in connection.execute(named, (tenant, *rest))}
        return found

    return await database.read(work)
