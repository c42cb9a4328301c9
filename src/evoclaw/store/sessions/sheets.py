"""Stored canvases of sessions, where several orchestrators share a database."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from evoclaw.store.databases.database import Database, Schema, sealed, unsealed

SCHEMA = Schema(
    "canvas store",
    (
        (
            """CREATE TABLE sheets (
                tenant TEXT NOT NULL,
                session_id TEXT NOT NULL,
                sheet BLOB NOT NULL,
                changed_at REAL NOT NULL,
                PRIMARY KEY (tenant, session_id)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
    sealed=(("sheets", ("sheet",)),),
)
PUT = """
INSERT INTO sheets VALUES (?, ?, ?, ?) ON CONFLICT (tenant, session_id)
DO UPDATE SET sheet = excluded.sheet, changed_at = excluded.changed_at
"""
SAME = "tenant = ? AND session_id = ?"


class _Sheet(Struct, frozen=True):
    """The content of a canvas; the same fields as that of the tool."""

    content: str
    format: str
    title: str = ""


class StoredCanvas:
    """The canvas of one session, the same on every orchestrator."""

    def __init__(
        self,
        database: Database,
        tenant: str,
        session_id: str,
        seen_at: str,
        clock: Callable[[], float],
    ) -> None:
        self._database, self._key, self._seen_at = database, (tenant, session_id), seen_at
        self._clock = clock

    async def show(self, sheet: _Sheet) -> str:
        """Replace the content; returns where to see it."""
        blob = msgspec.json.encode(_Sheet(sheet.content, sheet.format, sheet.title))
        values = (*self._key, sealed(blob), self._clock())
        await self._database.write(lambda c: c.execute(PUT, values))
        return self._seen_at

    async def shown(self) -> _Sheet | None:
        """The current content."""
        find = f"SELECT sheet FROM sheets WHERE {SAME}"
        row = await self._database.read(lambda c: c.execute(find, self._key).fetchone())
        if row is None:
            return None
        return msgspec.json.decode(unsealed(row[0], self._database.name), type=_Sheet)

    async def changed_at(self) -> float:
        """When the content changed, in Unix seconds; 0 without content."""
        find = f"SELECT changed_at FROM sheets WHERE {SAME}"
        row = await self._database.read(lambda c: c.execute(find, self._key).fetchone())
        return 0.0 if row is None else row[0]

    async def clear(self) -> None:
        """Delete the content."""
        delete = f"DELETE FROM sheets WHERE {SAME}"
        await self._database.write(lambda c: c.execute(delete, self._key))


class StoredCanvases:
    """The canvases of sessions: one each, which no other session may see or change."""

    def __init__(
        self, database: Database, seen_at: str, clock: Callable[[], float] = time.time
    ) -> None:
        """Store them in a database; `view_url` is where to see them."""
        self._database, self._seen_at, self._clock = database, seen_at, clock

    def of(self, tenant: str, session_id: str) -> StoredCanvas:
        """The canvas of a session."""
        return StoredCanvas(self._database, tenant, session_id, self._seen_at, self._clock)
