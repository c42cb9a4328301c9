"""Deletes the sessions that ended long ago, without reading the others.

All runs of an expired session ended before a time, and it was created before it. So two walks in
bounded batches find it: over the runs by the time of their end, and, for sessions without runs,
over the sessions in the order of their creation. A process looks at each of them once.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.store.databases.database import Connection, Database, open_blob
from evoclaw.store.databases.steps import Step
from evoclaw.store.sessions.delete_steps import (
    DELETE_EXPIRED_SESSION,
    EXPIRED,
    HIDDEN,
    IN_USE,
    KEPT,
    MAX_RUNS_AT_ONCE,
    delete_hidden,
    session_lock,
)

BATCH_ROWS = 50
"""So few that others can write in between."""

# From tenant to tenant by the index of the ends: a few steps for each, however many runs it has.
TENANTS_WITH_OLD_RUNS = """
WITH RECURSIVE tenants (tenant) AS (
    SELECT min(tenant) FROM runs WHERE ended_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(runs.tenant) FROM runs
        WHERE runs.tenant > tenants.tenant AND runs.ended_at IS NOT NULL)
    FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE EXISTS (
    SELECT 1 FROM runs
    WHERE runs.tenant = tenants.tenant AND runs.ended_at >= ? AND runs.ended_at < ?)
"""
# With the end of the last run of the session: most sessions that are in use are left out by it.
OLD_RUNS = """
SELECT r.ended_at, r.seq, r.session_id, (
    SELECT l.ended_at FROM runs l WHERE l.tenant = r.tenant AND l.session_id = r.session_id
    ORDER BY l.seq DESC LIMIT 1)
FROM runs r WHERE r.tenant = ? AND (r.ended_at, r.seq) > (?, ?) AND r.ended_at < ?
ORDER BY r.ended_at, r.seq LIMIT ?
"""
# With the start of its first run, if it has one. For an EXISTS, PostgreSQL would read all runs.
SESSIONS_IN_ORDER = """
SELECT s.seq, s.tenant, s.id, s.session, (
    SELECT r.began_at FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id
    ORDER BY r.seq LIMIT 1)
FROM sessions s WHERE s.seq > ? ORDER BY s.seq LIMIT ?
"""
SESSION = "SELECT seq, session FROM sessions WHERE tenant = ? AND id = ?"

SessionKey: TypeAlias = tuple[str, str]
"""The tenant and the id of a session."""
OnDeleted: TypeAlias = Callable[[str, str], Awaitable[None]]


class ExpiredSessions:
    """Deletes the sessions of all tenants that ended before a time.

    It may be interrupted at any time, and repeated; other processes may do the same. A session
    without runs ends when it is created.
    """

    def __init__(self, database: Database, *, batch_rows: int = BATCH_ROWS) -> None:
        """Look at nothing yet.

        Args:
            database: The database.
            batch_rows: Runs or sessions that are checked in one transaction.
        """
        self._database, self._batch_rows = database, batch_rows
        self._until = -math.inf
        """Runs that ended before this time were looked at."""
        self._seq = 0
        """Sessions up to this one were looked at."""
        self._kept: set[SessionKey] = set()
        """Sessions that were looked at, and that the end of a run will not lead back to."""

    async def delete(self, before: float, on_deleted: OnDeleted | None = None) -> int:
        """Delete the sessions that ended before a time, with their runs and records; how many.

        Args:
            before: Unix seconds.
            on_deleted: Called with the tenant and the id of each, to delete what is stored
                elsewhere.
        """
        if before < self._until:
            # The clock was set back: runs end again in the time that was looked at.
            self._until, self._seq, self._kept = -math.inf, 0, set()
        count = 0
        for walk in (self._kept_batches, self._ended_batches, self._unused_batches):
            async with aclosing(walk(before)) as batches:
                async for batch in batches:
                    for tenant, id_ in await self._delete_expired(batch, before):
                        count += 1
                        if on_deleted is not None:
                            await on_deleted(tenant, id_)
        return count

    async def _kept_batches(self, before: float) -> AsyncGenerator[Iterable[SessionKey]]:
        kept = sorted(self._kept)
        for first in range(0, len(kept), self._batch_rows):
            yield kept[first : first + self._batch_rows]

    async def _ended_batches(self, before: float) -> AsyncGenerator[Iterable[SessionKey]]:
        """The sessions whose last run ended in the time that was not looked at."""
        for (tenant,) in await self._read(TENANTS_WITH_OLD_RUNS, self._until, before):
            ended_at, seq, rows = self._until, -1, list[Any]()
            while len(rows) == self._batch_rows or seq < 0:
                rows = await self._read(OLD_RUNS, tenant, ended_at, seq, before, self._batch_rows)
                ended_at, seq = rows[-1][:2] if rows else (before, 0)
                keys = {
                    (tenant, id_): None
                    for _, _, id_, last in rows
                    if last is not None and last < before
                }
                yield keys.keys() - self._kept
        self._until = before

    async def _unused_batches(self, before: float) -> AsyncGenerator[Iterable[SessionKey]]:
        """The sessions without runs, up to those that were created later."""
        more = True
        while more:
            rows = await self._read(SESSIONS_IN_ORDER, self._seq, self._batch_rows)
            # A younger one can be among the old: clocks differ, or are set back.
            old = [n for n, row in enumerate(rows) if self._started_at(*row[3:]) < before]
            more = bool(old) and old[-1] + 1 == self._batch_rows
            seen = rows[: old[-1] + 1 if old else 0]
            yield [(tenant, id_) for _, tenant, id_, _, began_at in seen if began_at is None]
            if seen:
                self._seq = int(seen[-1][0])

    async def _delete_expired(self, keys: Iterable[SessionKey], before: float) -> list[SessionKey]:
        """Delete the expired ones of a batch."""
        batch = sorted(keys)

        def work(connection: Connection) -> list[tuple[SessionKey, Any]]:
            return [(key, connection.execute(SESSION, key).fetchone()) for key in batch]

        expired = list[SessionKey]()
        for key, row in await self._database.read(work) if batch else ():
            state = IN_USE if row is None else await self._delete_if_expired(key, row, before)
            self._kept.discard(key)
            if state == KEPT:
                self._kept.add(key)
            elif state == EXPIRED:
                expired.append(key)
        return expired

    async def _delete_if_expired(self, key: SessionKey, row: Any, before: float) -> str:
        # The row number too: another session may have got the same id meanwhile.
        seq, blob = row
        values = (*key, seq, self._created_at(blob), before, MAX_RUNS_AT_ONCE)
        step = Step(DELETE_EXPIRED_SESSION, values, lock=session_lock(*key))
        state = await self._database.apply(step)
        if state == HIDDEN:
            await delete_hidden(self._database, *key)
        return EXPIRED if state == HIDDEN else state

    async def _read(self, statement: str, *values: object) -> list[Any]:
        return await self._database.read(lambda c: c.execute(statement, values).fetchall())

    def _started_at(self, blob: bytes, began_at: float | None) -> float:
        return self._created_at(blob) if began_at is None else began_at

    def _created_at(self, blob: bytes) -> float:
        return _CREATION.decode(open_blob(self._database, blob)).created_at


class _Creation(Struct):
    created_at: float


_CREATION = msgspec.json.Decoder(_Creation)
