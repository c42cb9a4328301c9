"""Deletes sessions; the only code that knows all tables with rows of a session."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.store.databases.database import Connection, Dialect

TABLES_BY_RUN_ID = (
    "records",
    "queue_inbox",
    "queue_pending",
    "queue_cancels",
    "queue_keys",
    "figures_runs",
    "figures_calls",
    "figures_hops",
)
"""Tables with the id of a run."""
TABLES_BY_SESSION_ID = ("messages", "todos", "questions", "runs")
"""Tables with the id of a session."""
_RUN_IDS = "SELECT id FROM runs WHERE tenant = ? AND session_id = ?"
_TABLE_NAMES = {
    "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table'",
    "postgres": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
}


def delete_sessions(
    connection: Connection, dialect: Dialect, sessions: Sequence[tuple[str, str]]
) -> list[str]:
    """Delete sessions with their runs, records and messages; the ids of the runs.

    Args:
        connection: In a transaction.
        dialect: The dialect of its database.
        sessions: Tenant and id of each session.
    """
    # Not every process uses, and so has created, every schema.
    existing = {name for (name,) in connection.execute(_TABLE_NAMES[dialect]).fetchall()}
    runs = [
        (tenant, run_id)
        for tenant, id_ in sessions
        for (run_id,) in connection.execute(_RUN_IDS, (tenant, id_)).fetchall()
    ]
    for table in TABLES_BY_RUN_ID:
        if table in existing:
            connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", runs)
    for table in TABLES_BY_SESSION_ID:
        delete = f"DELETE FROM {table} WHERE tenant = ? AND session_id = ?"
        connection.executemany(delete, sessions)
    connection.executemany("DELETE FROM sessions WHERE tenant = ? AND id = ?", sessions)
    return [run_id for _, run_id in runs]
