"""The tables of a kind of store, found out from the steps that make them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import lru_cache

from msgspec import Struct

from evoclaw.store.databases.database import Schema


class Table(Struct, frozen=True):
    """One table."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """By which its rows are in order, and found again."""
    counted: bool = False
    """Whether its key is a number that the database gives."""

    @property
    def selected(self) -> str:
        """All of it, in order."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"

    @property
    def inserted(self) -> str:
        """One row more."""
        marks = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})"


@lru_cache(maxsize=64)
def tables_of(schema: Schema) -> tuple[Table, ...]:
    """The tables that a kind of store has now, by name."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in schema.steps:
            for statement in step:
                connection.execute(statement)
        listed = connection.execute("PRAGMA table_list").fetchall()
        # Not what an index of words is made of: it is filled with the table that it is of.
        names = sorted(name for _, name, kind, *_ in listed if kind == "table")
        return tuple(_table(connection, name) for name in names if not name.startswith("sqlite_"))


def _table(connection: sqlite3.Connection, name: str) -> Table:
    found = connection.execute(f"PRAGMA table_info({name})").fetchall()
    keyed = sorted((place, column, type_) for _, column, type_, _, _, place in found if place)
    counted = len(keyed) == 1 and keyed[0][2] == "INTEGER"
    columns = tuple(column for _, column, *_ in found)
    return Table(name, columns, tuple(column for _, column, _ in keyed) or columns, counted)
