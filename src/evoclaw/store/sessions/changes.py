"""Renames, branches and deletes sessions, each in one transaction.

This is the only code that knows all tables with rows of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import Message
from evoclaw.store.databases.database import (
    Connection,
    Dialect,
    seal_blob,
)
from evoclaw.store.sessions import statements
from evoclaw.store.sessions.sessions import Session, SessionStore

DESCENDANTS = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM sessions WHERE tenant = ?1 AND id = ?2 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?1 AND sessions.parent = below.id AND sessions.parent <> ''
)
SELECT id FROM below
"""
STOP_REASONS = "SELECT stop FROM runs WHERE tenant = ? AND session_id = ?"


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


async def rename(store: SessionStore, session_id: str, title: str) -> Session | None:
    """Change the title of a session; None if it does not exist."""
    return await _change(store, session_id, lambda session: replace(session, title=title))


async def move(store: SessionStore, session_id: str, on: str) -> Session | None:
    """Change the edge that a session works on; None if it does not exist."""
    return await _change(store, session_id, lambda session: replace(session, on=on))


async def _change(
    store: SessionStore, session_id: str, changed: Callable[[Session], Session]
) -> Session | None:
    put = "UPDATE sessions SET session = ? WHERE tenant = ? AND id = ?"

    def work(connection: Connection) -> Session | None:
        found = store.find_session(connection, session_id)
        if found is None:
            return None
        new = changed(found)
        connection.execute(
            put, (seal_blob(store.database, msgspec.json.encode(new)), store.tenant, session_id)
        )
        return new

    return await store.database.write(work)


async def branch(store: SessionStore, session: Session, messages: Sequence[Message]) -> Session:
    """Store a new session with these messages."""
    create = store.create_work(session)
    rows = [
        (store.tenant, session.id, number, seal_blob(store.database, msgspec.json.encode(message)))
        for number, message in enumerate(messages)
    ]

    def work(connection: Connection) -> Session:
        created = create(connection)
        connection.executemany(statements.PUT_MESSAGE, rows)
        return created

    return await store.database.write(work)


class DeletedSessions(Struct, frozen=True):
    """The ids of what was deleted."""

    sessions: tuple[str, ...]
    runs: tuple[str, ...]


async def delete_session(store: SessionStore, session_id: str) -> DeletedSessions | None:
    """Delete a session and its descendants, with their runs, records and messages.

    Returns:
        What was deleted; None if one of the runs has not ended, and so nothing was.
    """
    ours = store.tenant

    def work(connection: Connection) -> DeletedSessions | None:
        ids = [row[0] for row in connection.execute(DESCENDANTS, (ours, session_id)).fetchall()]
        stops = [
            row for id_ in ids for row in connection.execute(STOP_REASONS, (ours, id_)).fetchall()
        ]
        if any(stop in (None, "waiting") for (stop,) in stops):
            return None
        runs = delete_sessions(connection, store.database.dialect, [(ours, id_) for id_ in ids])
        return DeletedSessions(tuple(ids), tuple(runs))

    return await store.database.write(work)


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
