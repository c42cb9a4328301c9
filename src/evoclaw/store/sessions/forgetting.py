"""What is deleted with a session: the one place that knows all tables with something of one."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.store.databases.database import Connection, Dialect

OF_RUNS = (
    "records",
    "queue_inbox",
    "queue_pending",
    "queue_cancels",
    "queue_keys",
    "figures_runs",
    "figures_calls",
    "figures_hops",
)
"""What is kept by the id of a run."""
OF_SESSIONS = ("messages", "todos", "questions", "runs")
"""What is kept by the id of a session."""
_RUNS = "SELECT id FROM runs WHERE tenant = ? AND session_id = ?"
_TABLES = {
    "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table'",
    "postgres": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
}


def forget(
    connection: Connection, dialect: Dialect, sessions: Sequence[tuple[str, str]]
) -> list[str]:
    """Delete sessions with all that was said and done there; the ids of their runs.

    Args:
        connection: Within a transaction.
        dialect: Of its database.
        sessions: Each a tenant and an id.
    """
    # Not every process uses, and so has made, every kind of store.
    there = {name for (name,) in connection.execute(_TABLES[dialect]).fetchall()}
    runs = [
        (tenant, run_id)
        for tenant, id_ in sessions
        for (run_id,) in connection.execute(_RUNS, (tenant, id_)).fetchall()
    ]
    for table in OF_RUNS:
        if table in there:
            connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", runs)
    for table in OF_SESSIONS:
        delete = f"DELETE FROM {table} WHERE tenant = ? AND session_id = ?"
        connection.executemany(delete, sessions)
    connection.executemany("DELETE FROM sessions WHERE tenant = ? AND id = ?", sessions)
    return [run_id for _, run_id in runs]
