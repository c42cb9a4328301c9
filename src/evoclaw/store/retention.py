"""Forgetting sessions that are long over, a few at a time; what goes on is never touched."""

from __future__ import annotations

import msgspec

from evoclaw.store.database import Connection, Database, unsealed
from evoclaw.store.sessions import Session

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
OF_RUNS = ("records", "queue_inbox", "queue_pending", "queue_cancels", "queue_keys")
OF_SESSIONS = ("messages", "todos", "questions")


async def forget_sessions(database: Database, before: float) -> int:
    """Forget the sessions that ended before a time, with their runs and records; how many.

    It may be ended at any moment, and begun again. A session without runs is as old as it is.
    """
    seq, count = 0, 0
    while True:
        after = seq

        def work(connection: Connection, after: int = after) -> tuple[int, int]:
            return _forget(connection, after, before, database.name)

        seq, some = await database.write(work)
        count += some
        if seq == after:
            return count


def _forget(connection: Connection, after: int, before: float, name: str) -> tuple[int, int]:
    found = connection.execute(OVER, (after, AT_ONCE)).fetchall()
    gone = [
        (tenant, id_)
        for _, tenant, id_, blob, ended in found
        if (_made_at(blob, name) if ended is None else ended) < before
    ]
    runs = "SELECT id FROM runs WHERE tenant = ? AND session_id = ?"
    for tenant, id_ in gone:
        ids = [(tenant, run) for (run,) in connection.execute(runs, (tenant, id_)).fetchall()]
        for table in OF_RUNS:
            connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", ids)
        for table in (*OF_SESSIONS, "runs"):
            connection.execute(
                f"DELETE FROM {table} WHERE tenant = ? AND session_id = ?", (tenant, id_)
            )
        connection.execute("DELETE FROM sessions WHERE tenant = ? AND id = ?", (tenant, id_))
    return (found[-1][0] if found else after), len(gone)


def _made_at(blob: bytes, name: str) -> float:
    return msgspec.json.decode(unsealed(blob, name), type=Session).created_at
