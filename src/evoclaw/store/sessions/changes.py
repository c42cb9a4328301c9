"""Sessions given another title, branched, forgotten: each all at once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import Message
from evoclaw.store.databases.database import Connection, sealed
from evoclaw.store.sessions import forgetting, statements
from evoclaw.store.sessions.sessions import Session, SessionStore

BELOW = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM sessions WHERE tenant = ?1 AND id = ?2 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?1 AND sessions.parent = below.id AND sessions.parent <> ''
)
SELECT id FROM below
"""
STOPS = "SELECT stop FROM runs WHERE tenant = ? AND session_id = ?"


async def rename(store: SessionStore, session_id: str, title: str) -> Session | None:
    """Give a session another title; None if there is no such session."""
    put = "UPDATE sessions SET session = ? WHERE tenant = ? AND id = ?"

    def work(connection: Connection) -> Session | None:
        found = store.find_session(connection, session_id)
        if found is None:
            return None
        new = replace(found, title=title)
        connection.execute(put, (sealed(msgspec.json.encode(new)), store.tenant, session_id))
        return new

    return await store.database.write(work)


async def branch(store: SessionStore, session: Session, messages: Sequence[Message]) -> Session:
    """Keep a new session in which this was said."""
    create = store.creating(session)
    rows = [
        (store.tenant, session.id, number, sealed(msgspec.json.encode(message)))
        for number, message in enumerate(messages)
    ]

    def work(connection: Connection) -> Session:
        made = create(connection)
        connection.executemany(statements.SAY, rows)
        return made

    return await store.database.write(work)


class Forgotten(Struct, frozen=True):
    """What is gone, by id."""

    sessions: tuple[str, ...]
    runs: tuple[str, ...]


async def forget(store: SessionStore, session_id: str) -> Forgotten | None:
    """Forget a session, those below it, and all that was said and done there.

    Returns:
        What is forgotten; None if one of the runs has not ended, and so nothing was.
    """
    ours = store.tenant

    def work(connection: Connection) -> Forgotten | None:
        ids = [row[0] for row in connection.execute(BELOW, (ours, session_id)).fetchall()]
        stops = [row for id_ in ids for row in connection.execute(STOPS, (ours, id_)).fetchall()]
        if any(stop in (None, "waiting") for (stop,) in stops):
            return None
        runs = forgetting.forget(connection, store.database.dialect, [(ours, id_) for id_ in ids])
        return Forgotten(tuple(ids), tuple(runs))

    return await store.database.write(work)
