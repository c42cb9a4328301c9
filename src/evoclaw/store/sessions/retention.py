"""Deletes sessions that ended long ago, in batches; sessions with an open run are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from evoclaw.store.databases.database import Connection, Database, verify_checksum
from evoclaw.store.sessions.forgetting import delete_sessions
from evoclaw.store.sessions.sessions import Session

BATCH_SESSIONS = 50
"""Sessions that are checked in one transaction, so that others can write in between."""
# Neither its runs, nor their ancestors and descendants, are open.
FINISHED_SESSIONS = """
SELECT s.seq, s.tenant, s.id, s.session,
    (SELECT max(r.ended_at) FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id)
FROM sessions s WHERE s.seq > ?
AND NOT EXISTS (
    SELECT 1 FROM runs r JOIN runs o ON o.tenant = r.tenant AND o.root_run = r.root_run
    WHERE r.tenant = s.tenant AND r.session_id = s.id AND (o.stop IS NULL OR o.stop = 'waiting'))
ORDER BY s.seq LIMIT ?
"""
SessionKey: TypeAlias = tuple[str, str]
"""The tenant and the id of a session."""


async def delete_expired_sessions(
    database: Database,
    before: float,
    on_deleted: Callable[[str, str], Awaitable[None]] | None = None,
) -> int:
    """Delete the sessions that ended before a time, with their runs and records; how many.

    It may be interrupted at any time, and repeated. A session without runs ends when it is created.

    Args:
        database: The database.
        before: Unix seconds.
        on_deleted: Called with the tenant and the id of each, to delete what is stored elsewhere.
    """
    seq, count = 0, 0
    while True:
        after = seq

        def work(connection: Connection, after: int = after) -> tuple[int, list[SessionKey]]:
            return _delete_batch(connection, after, before, database)

        seq, deleted = await database.write(work)
        count += len(deleted)
        if on_deleted is not None:
            for tenant, id_ in deleted:
                await on_deleted(tenant, id_)
        if seq == after:
            return count


def _delete_batch(
    connection: Connection, after: int, before: float, database: Database
) -> tuple[int, list[SessionKey]]:
    found = connection.execute(FINISHED_SESSIONS, (after, BATCH_SESSIONS)).fetchall()
    expired = [
        (tenant, id_)
        for _, tenant, id_, blob, ended in found
        if (_created_at(blob, database.name) if ended is None else ended) < before
    ]
    delete_sessions(connection, database.dialect, expired)
    return (found[-1][0] if found else after), expired


def _created_at(blob: bytes, name: str) -> float:
    return msgspec.json.decode(verify_checksum(blob, name), type=Session).created_at
