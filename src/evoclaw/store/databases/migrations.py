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
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import Connection, Database, Dialect, Schema
from evoclaw.store.databases.dialect import migrations_for, to_postgres_ddl
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.sqlite_file import (
    UNAVAILABLE_TIMEOUT_S,
    FileContents,
    refuse_newer_schema,
)
from evoclaw.store.databases.steps import WRITER_TABLES, Procedure, server_functions

if TYPE_CHECKING:
    import psycopg

    from evoclaw.store.databases.postgres_connection import PostgresServer

VERSIONS_TABLE = (
    "CREATE TABLE parts (name TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL) STRICT"
)
PUT_VERSION = """
INSERT INTO parts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version
"""
STEP_SCHEMA = Schema("steps", ((),), postgres_migrations=(WRITER_TABLES,))
FORGET_WRITERS = b"""
DELETE FROM step_writers WHERE at < extract(epoch FROM clock_timestamp()) - 7 * 86400
"""
"""Processes that have written nothing for a week."""
MIN_POSTGRES_VERSION = 130_000
"""The first version of PostgreSQL with `pg_xact_status`, the outcome of a transaction."""


class MultiSchemaFormat(Struct, frozen=True):
    """A file with several schemas; it may hold more than these."""

    schemas: tuple[Schema, ...]
    name: str = "evoclaw database"
    application_id: int = 0x45564F43
    synchronous: str = "NORMAL"

    def create_tables(self, connection: sqlite3.Connection) -> None:
        """Create the table of schema versions."""
        connection.execute(VERSIONS_TABLE)

    def read_contents(self, connection: sqlite3.Connection) -> FileContents:
        """The version of each schema."""
        known = _versions(connection) if _has_versions_table(connection) else {}
        versions = tuple((s, known[s.name]) for s in self.schemas if s.name in known)
        return FileContents(
            versions, has_unknown_schemas=len(known) > len(versions), extra_tables=(VERSIONS_TABLE,)
        )

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Migrate each schema in its own transaction."""
        known = _versions(connection)
        for schema in self.schemas:
            if known.get(schema.name) != len(schema.migrations):
                connection.execute("BEGIN IMMEDIATE")
                apply_migrations(connection, schema, "sqlite")
                connection.execute("COMMIT")


async def open_database(
    location: Path | str,
    schemas: Sequence[Schema],
    *,
    schema: str = "evoclaw",
    password: str = "",
    durable: bool = True,
    set_aside: bool = False,
    reconnect_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    cipher: BlobCipher | None = None,
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
        cipher: Encrypts what runs hold; by default nothing is encrypted.
    """
    if isinstance(location, Path):
        file_format = MultiSchemaFormat(tuple(schemas))
        file = await SqliteDatabase.open(
            location, file_format, durable=durable, set_aside=set_aside
        )
        file.cipher = cipher or file.cipher
        return file
    try:
        from evoclaw.store.databases.postgres import PostgresDatabase
        from evoclaw.store.databases.postgres_connection import PostgresServer
    except ImportError:
        raise ConfigError(
            "a PostgreSQL store needs psycopg; run: pip install 'evoclaw[postgres]'"
        ) from None
    server = PostgresServer(location, schema, password, durable)
    opened = await PostgresDatabase.open(
        server,
        lambda raw: _migrate_postgres(raw, server, schemas),
        reconnect_timeout_s=reconnect_timeout_s,
    )
    opened.cipher = cipher or opened.cipher
    return opened


def _procedures(schemas: Sequence[Schema]) -> list[Procedure]:
    return [procedure for schema in schemas for procedure in schema.procedures]


def _migrate_postgres(
    raw: psycopg.Connection, server: PostgresServer, schemas: Sequence[Schema]
) -> str:
    """Migrate each schema in PostgreSQL, in its own transaction; the digest of the functions."""
    from evoclaw.store.databases.postgres_connection import PostgresConnection, lock_key

    encoding = raw.info.parameter_status("server_encoding")
    if raw.info.server_version < MIN_POSTGRES_VERSION or encoding != "UTF8":
        raise ConfigError(
            f"cannot use {server.name}: it is PostgreSQL {raw.info.server_version // 10_000} with "
            f"encoding {encoding}; use PostgreSQL 13 or newer with encoding UTF8"
        )
    connection, ours = PostgresConnection(raw), (server.schema,)
    for schema in (STEP_SCHEMA, *schemas):
        if _postgres_versions(connection, server.schema).get(schema.name) == len(schema.migrations):
            continue
        with raw.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute("SET LOCAL lock_timeout = 0")
            connection.execute("SELECT pg_advisory_xact_lock(?)", (lock_key(server.schema),))
            if not connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = ?", ours
            ).fetchone():
                connection.execute(f"CREATE SCHEMA {server.schema}")
            if not _postgres_has_versions_table(connection, server.schema):
                connection.execute(to_postgres_ddl(VERSIONS_TABLE))
            refuse_newer_schema(schema, _versions(connection).get(schema.name, 0), server.name)
            apply_migrations(connection, schema, "postgres")
    return _create_functions(raw, server, schemas)


def _create_functions(
    raw: psycopg.Connection, server: PostgresServer, schemas: Sequence[Schema]
) -> str:
    """Create the functions of the procedures, unless this version exists; returns their digest."""
    from evoclaw.store.databases.postgres_connection import lock_key

    digest, statements = server_functions(_procedures(schemas))
    find = b"SELECT count(*) FROM pg_proc WHERE proname LIKE $1 AND pronamespace = $2::regnamespace"
    values = (f"step\\_%\\_{digest}", server.schema)
    with raw.transaction():
        raw.execute(b"SELECT pg_advisory_xact_lock($1)", (lock_key(server.schema),))
        row = raw.execute(find, values).fetchone()
        if row is not None and row[0] < len(statements):
            for statement in statements:
                raw.execute(statement.encode())
        raw.execute(FORGET_WRITERS)
    return digest


def apply_migrations(connection: Connection, schema: Schema, dialect: Dialect) -> None:
    """Apply the missing migrations of one schema in the open transaction."""
    version = _versions(connection).get(schema.name, 0)
    for step in migrations_for(schema, dialect)[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(PUT_VERSION, (schema.name, len(schema.migrations)))


def _versions(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT name, version FROM parts").fetchall())


def _has_versions_table(connection: Connection) -> bool:
    statement = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'parts'"
    return connection.execute(statement).fetchone() is not None


def _postgres_has_versions_table(connection: Connection, schema: str) -> bool:
    statement = "SELECT to_regclass(?) IS NOT NULL"
    return connection.execute(statement, (f"{schema}.parts",)).fetchone()[0]


def _postgres_versions(connection: Connection, schema: str) -> dict[str, int]:
    return _versions(connection) if _postgres_has_versions_table(connection, schema) else {}
