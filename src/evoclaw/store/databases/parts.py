"""Opens a database with several schemas, and migrates each of them.

All stores share one file, or one PostgreSQL, so that related rows are committed together.
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
"""The first version of PostgreSQL with `pg_xact_status`, the outcome of a transaction."""


class Parts(Struct, frozen=True):
    """A file with several schemas; it may hold more than these."""

    schemas: tuple[Schema, ...]
    name: str = "evoclaw database"
    mark: int = 0x45564F43
    lasting: str = "NORMAL"

    def found(self, connection: sqlite3.Connection) -> None:
        """Create the table of schema versions."""
        connection.execute(TABLE)

    def held(self, connection: sqlite3.Connection) -> Held:
        """The version of each schema."""
        known = _versions(connection) if _is_founded(connection) else {}
        versions = tuple((s, known[s.name]) for s in self.schemas if s.name in known)
        return Held(versions, strangers=len(known) > len(versions), beside=(TABLE,))

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Migrate each schema in its own transaction."""
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
    """Open or create a database for several schemas.

    Args:
        location: The path of a file, or a PostgreSQL URL: `postgresql://user@host/database`.
        schemas: The schemas to use; the database may hold more.
        schema: The PostgreSQL schema that holds all tables.
        password: For PostgreSQL.
        durable: Whether a write is on the disk when it returns, not just in the page cache.
        set_aside: Whether a damaged file is moved aside and replaced by a new one.
        reconnect_timeout_s: Seconds that PostgreSQL may be unreachable before requests fail.
    """
    if isinstance(place, Path):
        file_format = Parts(tuple(schemas))
        return await SqliteDatabase.open(place, file_format, durable=durable, set_aside=set_aside)
    try:
        from evoclaw.store.databases.postgres import PostgresDatabase
        from evoclaw.store.databases.postgres_link import Server
    except ImportError:
        raise ConfigError(
            "a PostgreSQL store needs psycopg; run: pip install 'evoclaw[postgres]'"
        ) from None
    server = Server(place, schema, password, durable)
    return await PostgresDatabase.open(
        server, lambda raw: _prepare(raw, server, schemas), patience=patience
    )


def _prepare(raw: psycopg.Connection, server: Server, schemas: Sequence[Schema]) -> None:
    """Migrate each schema in PostgreSQL, in its own transaction."""
    from evoclaw.store.databases.postgres_link import Spoken, lock_key

    encoding = raw.info.parameter_status("server_encoding")
    if raw.info.server_version < OLDEST or encoding != "UTF8":
        raise ConfigError(
            f"cannot use {server.name}: it is PostgreSQL {raw.info.server_version // 10_000} with "
            f"encoding {encoding}; use PostgreSQL 13 or newer with encoding UTF8"
        )
    connection, ours = Spoken(raw), (server.schema,)
    for schema in schemas:
        if _known(connection, server.schema).get(schema.name) == len(schema.steps):
            continue
        with raw.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute("SET LOCAL lock_timeout = 0")
            connection.execute("SELECT pg_advisory_xact_lock(?)", (lock_key(server.schema),))
            if not connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = ?", ours
            ).fetchone():
                connection.execute(f"CREATE SCHEMA {server.schema}")
            if not _is_there(connection, server.schema):
                connection.execute(translated_table(TABLE))
            refuse_newer(schema, _versions(connection).get(schema.name, 0), server.name)
            advance(connection, schema, "postgres")


def advance(connection: Connection, schema: Schema, dialect: Dialect) -> None:
    """Apply the missing migrations of one schema in the open transaction."""
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
