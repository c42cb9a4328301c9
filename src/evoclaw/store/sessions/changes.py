"""Renames, branches and deletes sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import Message
from evoclaw.store.databases.database import Connection, seal_blob
from evoclaw.store.databases.steps import Step
from evoclaw.store.sessions import statements
from evoclaw.store.sessions.delete_steps import (
    DELETE_SESSION,
    MAX_RUNS_AT_ONCE,
    delete_hidden,
    session_lock,
)
from evoclaw.store.sessions.sessions import Session, SessionStore


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
        (store.tenant, session.id, number, store.encode_message(message))
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

    All of it is gone at once for every reader; the rows of very many runs are deleted in batches.

    Returns:
        What was deleted; None if one of the runs has not ended, and so nothing was.
    """
    lock = session_lock(store.tenant, session_id)
    step = Step(DELETE_SESSION, (store.tenant, session_id, MAX_RUNS_AT_ONCE), lock=lock)
    found = await store.database.apply(step)
    if found is None:
        return None
    sessions, runs = found
    if runs is None:
        runs = list[str]()
        for id_ in sessions:
            runs += await delete_hidden(store.database, store.tenant, id_)
    return DeletedSessions(tuple(sessions), tuple(runs))
