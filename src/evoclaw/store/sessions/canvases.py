"""The canvases of the sessions of a service."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from evoclaw.core.canvases import CanvasSheet
from evoclaw.store.databases.database import Database, Schema, open_blob, seal_blob

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
    checksummed=(("sheets", ("sheet",)),),
    sealed=True,
)
PUT_SHEET = """
INSERT INTO sheets VALUES (?, ?, ?, ?) ON CONFLICT (tenant, session_id)
DO UPDATE SET sheet = excluded.sheet, changed_at = excluded.changed_at
"""
KEY_CONDITION = "tenant = ? AND session_id = ?"


class StoredCanvas:
    """The canvas of one session, the same on every orchestrator."""

    def __init__(
        self,
        database: Database,
        tenant: str,
        session_id: str,
        view_url: str,
        clock: Callable[[], float],
    ) -> None:
        self._database, self._key, self._view_url = database, (tenant, session_id), view_url
        self._clock = clock

    async def show(self, sheet: CanvasSheet) -> str:
        """Replace the content; returns where to see it."""
        blob = msgspec.json.encode(CanvasSheet(sheet.content, sheet.format, sheet.title))
        values = (*self._key, seal_blob(self._database, blob), self._clock())
        await self._database.write(lambda c: c.execute(PUT_SHEET, values))
        return self._view_url

    async def current(self) -> CanvasSheet | None:
        """The current content."""
        find = f"SELECT sheet FROM sheets WHERE {KEY_CONDITION}"
        row = await self._database.read(lambda c: c.execute(find, self._key).fetchone())
        if row is None:
            return None
        return msgspec.json.decode(open_blob(self._database, row[0]), type=CanvasSheet)

    async def changed_at(self) -> float:
        """When the content changed, in Unix seconds; 0 without content."""
        find = f"SELECT changed_at FROM sheets WHERE {KEY_CONDITION}"
        row = await self._database.read(lambda c: c.execute(find, self._key).fetchone())
        return 0.0 if row is None else row[0]

    async def clear(self) -> None:
        """Delete the content."""
        delete = f"DELETE FROM sheets WHERE {KEY_CONDITION}"
        await self._database.write(lambda c: c.execute(delete, self._key))


class StoredCanvases:
    """The canvases of sessions: one each, which no other session may see or change."""

    def __init__(
        self, database: Database, view_url: str, clock: Callable[[], float] = time.time
    ) -> None:
        """Store them in a database; `view_url` is where to see them."""
        self._database, self._view_url, self._clock = database, view_url, clock

    def of(self, tenant: str, session_id: str) -> StoredCanvas:
        """The canvas of a session."""
        return StoredCanvas(self._database, tenant, session_id, self._view_url, self._clock)
