"""Deletes the sessions that ended long ago, without reading the others.

All runs of an expired session ended before a time, and it was created before it. So two walks in
bounded batches find it: over the runs by the time of their end, and, for sessions without runs,
over the sessions in the order of their creation. A process looks at each of them once.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from enum import Enum, auto
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.store.databases.database import Connection, Database, open_blob
from evoclaw.store.sessions.changes import delete_sessions

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
# Whether a run of it is open, and whether an ancestor or a descendant of its runs is.
SESSION_STATE = """
SELECT s.session,
    (SELECT max(r.ended_at) FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id),
    EXISTS (SELECT 1 FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id
        AND (r.stop IS NULL OR r.stop = 'waiting')),
    EXISTS (SELECT 1 FROM runs o WHERE o.tenant = s.tenant AND o.root_run IN (
        SELECT r.root_run FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id)
        AND (o.stop IS NULL OR o.stop = 'waiting'))
FROM sessions s WHERE s.tenant = ? AND s.id = ?
"""

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
        """Delete the expired ones of a batch in one transaction."""
        batch = sorted(keys)
        if not batch:
            return []

        def work(connection: Connection) -> tuple[list[SessionKey], list[SessionKey]]:
            found = [(key, self._state(connection, key, before)) for key in batch]
            expired = [key for key, state in found if state is _ExpiryState.EXPIRED]
            if expired:
                delete_sessions(connection, self._database.dialect, expired)
            return expired, [key for key, state in found if state is _ExpiryState.KEPT]

        expired, kept = await self._database.write(work)
        self._kept.difference_update(batch)
        self._kept.update(kept)
        return expired

    def _state(self, connection: Connection, key: SessionKey, before: float) -> _ExpiryState:
        row = connection.execute(SESSION_STATE, key).fetchone()
        if row is None:  # another process deleted it
            return _ExpiryState.IN_USE
        blob, ended_at, is_open, has_open_relative = row
        if is_open:
            return _ExpiryState.IN_USE
        if has_open_relative:
            return _ExpiryState.KEPT
        if (self._created_at(blob) if ended_at is None else ended_at) < before:
            return _ExpiryState.EXPIRED
        return _ExpiryState.KEPT if ended_at is None else _ExpiryState.IN_USE

    async def _read(self, statement: str, *values: object) -> list[Any]:
        return await self._database.read(lambda c: c.execute(statement, values).fetchall())

    def _started_at(self, blob: bytes, began_at: float | None) -> float:
        return self._created_at(blob) if began_at is None else began_at

    def _created_at(self, blob: bytes) -> float:
        return _CREATION.decode(open_blob(self._database, blob)).created_at


class _ExpiryState(Enum):
    """What a look at a session found."""

    EXPIRED = auto()
    IN_USE = auto()
    """A run of it is open or ended later: its end leads back to the session."""
    KEPT = auto()
    """It is young and has no runs, or a relative of its runs is open."""


class _Creation(Struct):
    created_at: float


_CREATION = msgspec.json.Decoder(_Creation)
