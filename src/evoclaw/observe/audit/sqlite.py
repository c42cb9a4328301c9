"""A cold tier in a file of this machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

from evoclaw.observe.audit.cold import Value
from evoclaw.observe.audit.settings import AuditError

PATIENCE = 10.0
"""Seconds that another process may hold the file."""


class SqliteDatabase:
    """One SQLite file, opened when first used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()
        self._held = threading.Lock()
        """A statement goes on though whoever waited for it was cancelled."""

    @property
    def name(self) -> str:
        """Which one it is."""
        return f"sqlite:{self._path}"

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        """Run one statement, off the loop."""
        async with self._turn:
            return await asyncio.to_thread(self._run, sql, values)

    async def close(self) -> None:
        """Close the file."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._held:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _run(self, sql: str, values: tuple[Value, ...]) -> list[tuple[Value, ...]]:
        try:
            with self._held:
                if self._opened is None:
                    self._opened = self._open()
                return self._opened.execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as problem:
            raise AuditError(f"the cold tier {self._path} cannot be used: {problem}") from None

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # Each number of records is a statement of its own, and one that is kept for the next time
        # keeps its values: megabytes, for something that is done once in a while.
        opened = sqlite3.connect(
            self._path,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=0,
        )
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = FULL")
        return opened
