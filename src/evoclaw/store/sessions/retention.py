"""Forgetting sessions that are long over, a few at a time; what goes on is never touched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from evoclaw.store.databases.database import Connection, Database, unsealed
from evoclaw.store.sessions.forgetting import forget
from evoclaw.store.sessions.sessions import Session

AT_ONCE = 50
"""Sessions that are looked at in one transaction: others write in between."""
# Nothing of it goes on, and nothing that its runs began, or that began them.
OVER = """
SELECT s.seq, s.tenant, s.id, s.session,
    (SELECT max(r.ended_at) FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id)
FROM sessions s WHERE s.seq > ?
AND NOT EXISTS (
    SELECT 1 FROM runs r JOIN runs o ON o.tenant = r.tenant AND o.root_run = r.root_run
    WHERE r.tenant = s.tenant AND r.session_id = s.id AND (o.stop IS NULL OR o.stop = 'waiting'))
ORDER BY s.seq LIMIT ?
"""
Whose: TypeAlias = tuple[str, str]
"""A session: its tenant and its id."""


async def forget_sessions(
    database: Database,
    before: float,
    forgotten: Callable[[str, str], Awaitable[None]] | None = None,
) -> int:
    """Forget the sessions that ended before a time, with their runs and records; how many.

    It may be ended at any moment, and begun again. A session without runs is as old as it is.

    Args:
        database: Where they are.
        before: Unix seconds.
        forgotten: Told the tenant and the id of each: what is kept elsewhere goes, too.
    """
    seq, count = 0, 0
    while True:
        after = seq

        def work(connection: Connection, after: int = after) -> tuple[int, list[Whose]]:
            return _forget(connection, after, before, database)

        seq, some = await database.write(work)
        count += len(some)
        if forgotten is not None:
            for tenant, id_ in some:
                await forgotten(tenant, id_)
        if seq == after:
            return count


def _forget(
    connection: Connection, after: int, before: float, database: Database
) -> tuple[int, list[Whose]]:
    found = connection.execute(OVER, (after, AT_ONCE)).fetchall()
    gone = [
        (tenant, id_)
        for _, tenant, id_, blob, ended in found
        if (_made_at(blob, database.name) if ended is None else ended) < before
    ]
    forget(connection, database.dialect, gone)
    return (found[-1][0] if found else after), gone


def _made_at(blob: bytes, name: str) -> float:
    return msgspec.json.decode(unsealed(blob, name), type=Session).created_at
