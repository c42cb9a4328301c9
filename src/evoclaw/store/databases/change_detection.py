"""Detects what any process changed in a database, without reading unchanged rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.sessions.statements import IS_SHOWN

CommitMark: TypeAlias = tuple[int, str]
"""A value that differs after every commit, of this or another process."""
RunStatusRow: TypeAlias = tuple[Any, ...]
"""The status of a run: differs whenever something changed that views show."""

# SQLite counts only the commits of others; PostgreSQL knows which transactions have ended.
_COMMIT_MARK_SQL = {
    "sqlite": "PRAGMA data_version",
    "postgres": "SELECT CAST(pg_current_snapshot() AS text)",
}
_RUN_STATUS_SQL = (
    "SELECT id, CASE WHEN epoch > 0 THEN 1 ELSE 0 END, stop, turns, calls, tokens_in, tokens_out, "
    f"cost, ended_at FROM runs WHERE tenant = ? AND {IS_SHOWN} "
)
_NEWEST_RUNS_SQL = f"{_RUN_STATUS_SQL} ORDER BY seq DESC LIMIT ?"
_OPEN_RUNS_SQL = f"{_RUN_STATUS_SQL} AND stop IS NULL ORDER BY seq DESC LIMIT ?"
STOP_COLUMN = 2
"""The position of the stop reason in a row."""


async def commit_mark(database: Database) -> CommitMark:
    """The mark of everything committed so far."""
    commits, statement = database.commits, _COMMIT_MARK_SQL[database.dialect]
    row = await database.read(lambda connection: connection.execute(statement).fetchone())
    return commits, str(row[0])


async def run_status_rows(
    database: Database, tenant: str, newest: int, open_: int, run_ids: Collection[str]
) -> dict[str, RunStatusRow]:
    """The status of runs of a tenant, by id, the newest first.

    Args:
        database: With the schema of the session store.
        tenant: The tenant.
        newest: How many of the newest runs.
        open_: How many of the queued and running runs.
        run_ids: The ids of further runs.
    """

    def work(connection: Connection) -> dict[str, RunStatusRow]:
        found = {
            row[0]: tuple(row) for row in connection.execute(_NEWEST_RUNS_SQL, (tenant, newest))
        }
        found |= {row[0]: tuple(row) for row in connection.execute(_OPEN_RUNS_SQL, (tenant, open_))}
        if rest := [run_id for run_id in run_ids if run_id not in found]:
            named = f"{_RUN_STATUS_SQL} AND id IN ({', '.join('?' * len(rest))})"
            found |= {row[0]: tuple(row) for row in connection.execute(named, (tenant, *rest))}
        return found

    return await database.read(work)
