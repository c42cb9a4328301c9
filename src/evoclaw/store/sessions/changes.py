"""Renames, branches and deletes sessions, each in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import Message
from evoclaw.store.databases.database import Connection, add_checksum
from evoclaw.store.sessions import statements
from evoclaw.store.sessions.deletion import delete_sessions as delete_rows
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


async def rename(store: SessionStore, session_id: str, title: str) -> Session | None:
    """Change the title of a session; None if it does not exist."""
    put = "UPDATE sessions SET session = ? WHERE tenant = ? AND id = ?"

    def work(connection: Connection) -> Session | None:
        found = store.find_session(connection, session_id)
        if found is None:
            return None
        new = replace(found, title=title)
        connection.execute(put, (add_checksum(msgspec.json.encode(new)), store.tenant, session_id))
        return new

    return await store.database.write(work)


async def branch(store: SessionStore, session: Session, messages: Sequence[Message]) -> Session:
    """Store a new session with these messages."""
    create = store.create_work(session)
    rows = [
        (store.tenant, session.id, number, add_checksum(msgspec.json.encode(message)))
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
        runs = delete_rows(connection, store.database.dialect, [(ours, id_) for id_ in ids])
        return DeletedSessions(tuple(ids), tuple(runs))

    return await store.database.write(work)
