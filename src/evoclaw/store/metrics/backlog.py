"""What waits in a store, of all tenants together: for whoever watches over the machine."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from evoclaw.store.databases.database import Connection, Database, unsealed

_QUEUED = "SELECT count(*) FROM runs WHERE stop IS NULL AND epoch = 0"
_OPEN = "FROM approvals WHERE decision IS NULL AND closed_at IS NULL AND expires_at > ?"


class Backlog(Struct, frozen=True):
    """How much waits, and since when."""

    queued_runs: int
    approvals: int
    oldest_approval: float | None
    """When it was asked for, in Unix seconds."""


class _Asked(Struct):
    asked_at: float


async def backlog_of(database: Database, now: float) -> Backlog:
    """What waits now."""

    def work(connection: Connection) -> Backlog:
        queued = connection.execute(_QUEUED).fetchone()[0]
        waiting = connection.execute(f"SELECT count(*) {_OPEN}", (now,)).fetchone()[0]
        row = connection.execute(f"SELECT asked {_OPEN} ORDER BY seq LIMIT 1", (now,)).fetchone()
        if row is None:
            return Backlog(queued, waiting, None)
        asked = msgspec.json.decode(unsealed(row[0], database.name), type=_Asked)
        return Backlog(queued, waiting, asked.asked_at)

    return await database.read(work, aside=True)
