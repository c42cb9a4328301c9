"""Several kinds of store in one database: each knows how far it is, and goes on by itself.

One file, or one PostgreSQL, so that what belongs together is committed together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import Connection, Database, Dialect, Schema
from evoclaw.store.databases.dialect import steps_of, translated_table
from evoclaw.store.databases.opening import PATIENCE, Held, refuse_newer
from evoclaw.store.databases.sqlite import SqliteDatabase

if TYPE_CHECKING:
    import psycopg

    from evoclaw.store.databases.postgres_link import Server

TABLE = "CREATE TABLE parts (name TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL) STRICT"
PUT = """
INSERT INTO parts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version
"""
OLDEST = 130_000
"""The first version of PostgreSQL that can say what became of a transaction."""


class Parts(Struct, frozen=True):
    """A file with several kinds of store; there may be more in it than is asked for."""

    schemas: tuple[Schema, ...]
    name: str = "evoclaw database"
    mark: int = 0x45564F43
    lasting: str = "NORMAL"

    def found(self, connection: sqlite3.Connection) -> None:
        """Make what knows of the parts."""
        connection.execute(TABLE)

    def held(self, connection: sqlite3.Connection) -> Held:
        """How far each part is."""
        known = _versions(connection) if _is_founded(connection) else {}
        versions = tuple((one, known[one.name]) for one in self.schemas if one.name in known)
        return Held(versions, strangers=len(known) > len(versions), beside=(TABLE,))

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Bring each part up to date, in a transaction of its own."""
        known = _versions(connection)
        for schema in self.schemas:
            if known.get(schema.name) != len(schema.steps):
                connection.execute("BEGIN IMMEDIATE")
                advance(connection, schema, "sqlite")
                connection.execute("COMMIT")


async def open_database(
    place: Path | str,
    schemas: Sequence[Schema],
    *,
    schema: str = "evoclaw",
    password: str = "",
    durable: bool = True,
    set_aside: bool = False,
    patience: float = PATIENCE,
) -> Database:
    """Open or make a database for several kinds of store.

    Args:
        place: Of a file, or the address of a PostgreSQL: `postgresql://user@host/database`.
        schemas: What is used of it; it may hold more.
        schema: The schema of the PostgreSQL that is ours.
        password: For the PostgreSQL.
        durable: Whether a write is on the disk when it returns, not just with the system.
        set_aside: Whether a damaged file is moved away and a new one begun.
        patience: Seconds that a PostgreSQL may be away before those who ask are told.
    """
    if isinstance(place, Path):
        form = Parts(tuple(schemas))
        return await SqliteDatabase.open(place, form, durable=durable, set_aside=set_aside)
    try:
        from evoclaw.store.databases.postgres import PostgresDatabase
        from evoclaw.store.databases.postgres_link import Server
    except ImportError:
        raise ConfigError(
            "a store in PostgreSQL needs psycopg: pip install 'evoclaw[postgres]'"
        ) from None
    server = Server(place, schema, password, durable)
    return await PostgresDatabase.open(
        server, lambda raw: _prepare(raw, server, schemas), patience=patience
    )


def _prepare(raw: psycopg.Connection, server: Server, schemas: Sequence[Schema]) -> None:
    """Bring each part in a PostgreSQL up to date, in a transaction of its own."""
    from evoclaw.store.databases.postgres_link import Spoken, lock_key

    encoding = raw.info.parameter_status("server_encoding")
    if raw.info.server_version < OLDEST or encoding != "UTF8":
        raise ConfigError(
            f"{server.name} cannot be used: it must be PostgreSQL 13 or newer, with UTF8 "
            f"(it is {raw.info.server_version // 10_000}, with {encoding})"
        )
    spoken, ours = Spoken(raw), (server.schema,)
    for schema in schemas:
        if _known(spoken, server.schema).get(schema.name) == len(schema.steps):
            continue
        with raw.transaction():
            spoken.execute("SET LOCAL statement_timeout = 0")
            spoken.execute("SET LOCAL lock_timeout = 0")
            spoken.execute("SELECT pg_advisory_xact_lock(?)", (lock_key(server.schema),))
            if not spoken.execute("SELECT 1 FROM pg_namespace WHERE nspname = ?", ours).fetchone():
                spoken.execute(f"CREATE SCHEMA {server.schema}")
            if not _is_there(spoken, server.schema):
                spoken.execute(translated_table(TABLE))
            refuse_newer(schema, _versions(spoken).get(schema.name, 0), server.name)
            advance(spoken, schema, "postgres")


def advance(connection: Connection, schema: Schema, dialect: Dialect) -> None:
    """Take the steps of one part that are missing, in the transaction that is open."""
    version = _versions(connection).get(schema.name, 0)
    for step in steps_of(schema, dialect)[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(PUT, (schema.name, len(schema.steps)))


def _versions(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT name, version FROM parts").fetchall())


def _is_founded(connection: Connection) -> bool:
    statement = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'parts'"
    return connection.execute(statement).fetchone() is not None


def _is_there(connection: Connection, schema: str) -> bool:
    statement = "SELECT to_regclass(?) IS NOT NULL"
    return connection.execute(statement, (f"{schema}.parts",)).fetchone()[0]


def _known(connection: Connection, schema: str) -> dict[str, int]:
    return _versions(connection) if _is_there(connection, schema) else {}
