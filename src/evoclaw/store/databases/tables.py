"""The tables of a schema, derived from its migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import lru_cache

from msgspec import Struct

from evoclaw.store.databases.database import Schema


class Table(Struct, frozen=True):
    """A table."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The columns by which its rows are ordered and looked up."""
    auto_increment: bool = False
    """Whether its key is a number that the database assigns."""

    @property
    def select_statement(self) -> str:
        """The SELECT of all columns."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"

    @property
    def insert_statement(self) -> str:
        """The INSERT of one row."""
        marks = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})"


@lru_cache(maxsize=64)
def tables_of(schema: Schema) -> tuple[Table, ...]:
    """The tables of the newest version of a schema, sorted by name."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in schema.migrations:
            for statement in step:
                connection.execute(statement)
        listed = connection.execute("PRAGMA table_list").fetchall()
        # Not the shadow tables of a full-text index: triggers fill it.
        names = sorted(name for _, name, kind, *_ in listed if kind == "table")
        return tuple(_table(connection, name) for name in names if not name.startswith("sqlite_"))


def _table(connection: sqlite3.Connection, name: str) -> Table:
    found = connection.execute(f"PRAGMA table_info({name})").fetchall()
    keyed = sorted((index, column, type_) for _, column, type_, _, _, index in found if index)
    counted = len(keyed) == 1 and keyed[0][2] == "INTEGER"
    columns = tuple(column for _, column, *_ in found)
    return Table(name, columns, tuple(column for _, column, _ in keyed) or columns, counted)
