"""Taking in the files in which earlier versions kept each kind of store by itself."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import Connection, Schema
from evoclaw.store.databases.opening import Single, beside, connect, inspect_file, move_aside
from evoclaw.store.databases.tables import tables_of


class OldFile:
    """A sound file that nobody else uses, as long as the block runs; it is never changed."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path, self._schema = path, schema
        self._stack = ExitStack()

    def __enter__(self) -> OldFile:
        inspect_file(self._path, Single(self._schema))
        with ExitStack() as stack:
            self._source = stack.enter_context(closing(connect(self._path, "rw")))
            self._take_alone()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _take_alone(self) -> None:
        self._source.execute("PRAGMA busy_timeout=0")
        self._source.execute("PRAGMA locking_mode=EXCLUSIVE")
        try:
            self._source.execute("BEGIN IMMEDIATE")
            self._source.execute("ROLLBACK")
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            raise ConfigError(
                f"{self._path} is to be moved into the one database, but is still used: "
                "end the evoclaw that runs, and begin again"
            ) from None

    def copy_to(self, connection: Connection) -> None:
        """Put all that it holds into tables of the same names."""
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}.copy")
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
                self._source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
                # Brought up to date as a copy, so that the file stays as the old version knows it.
                Single(self._schema).migrate(copy)
                for table in tables_of(self._schema):
                    connection.executemany(table.inserted, copy.execute(table.selected))
        finally:
            for name in (draft, beside(draft, "-wal"), beside(draft, "-shm")):
                name.unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Rename it: it was taken in."""
        # Whoever has it alone leaves a companion behind; whoever closes it next does not.
        with closing(connect(self._path, "rw")) as last:
            last.execute("SELECT 1 FROM sqlite_schema").fetchone()
        move_aside(self._path, "taken-in")
