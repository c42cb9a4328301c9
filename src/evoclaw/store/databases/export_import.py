"""Exports a database to one file, which any other database can import.

The file is a zip: a file for each table with one JSON array per row and line, and a manifest with
row counts and checksums. The same content gives the same file, byte for byte, from either database.

The tables of a schema, derived from its migrations.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sqlite3
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.blob_cipher import SEALED_PREFIX
from evoclaw.store.databases.database import (
    Conflict,
    Connection,
    Database,
    Schema,
    StoreError,
    add_checksum,
    open_blob,
    seal_blob,
    verify_checksum,
)


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


MANIFEST_NAME = "manifest.json"
BATCH_ROWS = 200
"""Rows that are read or written at a time."""
MAX_ROW_BYTES = 1 << 28
"""Bytes of an encoded row."""
ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
"""The constant time of all entries, so that the same content gives the same file."""


class ExportedTable(Struct, frozen=True):
    """A table in an export."""

    name: str
    columns: tuple[str, ...]
    rows: int
    sha256: str


class ExportedSchema(Struct, frozen=True):
    """A schema in an export."""

    name: str
    version: int
    tables: tuple[ExportedTable, ...]


class ExportManifest(Struct, frozen=True):
    """The contents of an export."""

    parts: tuple[ExportedSchema, ...]
    tenant: str = ""
    """The tenant whose rows these are; empty for all tenants."""
    format: Literal[1] = 1

    @property
    def rows(self) -> int:
        """How many rows all tables have."""
        return sum(table.rows for part in self.parts for table in part.tables)


class ImportRefused(StoreError):
    """A file cannot be imported; the database was not changed."""


async def export_to(
    file: Path, database: Database, schemas: Sequence[Schema], *, tenant: str = ""
) -> ExportManifest:
    """Export a database to a file, as of one moment; a SQLite file cannot be written meanwhile.

    Args:
        file: Overwritten; readable by its owner only.
        database: The database.
        schemas: The schemas to export.
        tenant: Export only the rows of this tenant. Tables without a tenant, such as device keys
            and spending, are left out then.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}.new")

    def work(connection: Connection) -> ExportManifest:
        with suppress(FileNotFoundError):
            draft.unlink()
        with _create_file(draft) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            parts = tuple(
                _export_schema(archive, database, connection, schema, tenant) for schema in schemas
            )
            manifest = ExportManifest(parts, tenant)
            archive.writestr(_zip_entry(MANIFEST_NAME), msgspec.json.encode(manifest))
        return manifest

    try:
        manifest = await database.write(work)
        await asyncio.to_thread(os.replace, draft, file)
    except OSError as problem:
        raise ConfigError(f"cannot write {file}: {problem.strerror}; choose another path") from None
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _create_file(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")


def _zip_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, ZIP_TIMESTAMP)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _export_schema(
    archive: zipfile.ZipFile,
    database: Database,
    connection: Connection,
    schema: Schema,
    tenant: str,
) -> ExportedSchema:
    tables = [
        _export_table(
            archive, _rows(connection, table, tenant), schema, table, lambda v: _plain(v, database)
        )
        for table in _exported_tables(schema)
        if not tenant or "tenant" in table.columns
    ]
    return ExportedSchema(schema.name, len(schema.migrations), tuple(tables))


def _export_table(
    archive: zipfile.ZipFile,
    rows: Iterator[Sequence[Any]],
    schema: Schema,
    table: Table,
    plain: Callable[[Any], Any],
) -> ExportedTable:
    digest, count = hashlib.sha256(), 0
    with archive.open(_zip_entry(_entry_path(schema, table.name)), "w", force_zip64=True) as entry:
        for row in rows:
            line = msgspec.json.encode([_to_json(plain(value)) for value in row]) + b"\n"
            digest.update(line)
            entry.write(line)
            count += 1
    return ExportedTable(table.name, table.columns, count, digest.hexdigest())


def _rows(connection: Connection, table: Table, tenant: str) -> Iterator[Sequence[Any]]:
    """All rows in the order of their key, in batches: no result set has to hold them all."""
    key, marks = ", ".join(table.key), ", ".join("?" * len(table.key))
    condition, values = ("tenant = ?", (tenant,)) if tenant else ("true", ())
    order = f"ORDER BY {key} LIMIT {BATCH_ROWS}"
    first = f"{table.select_statement} WHERE {condition} {order}"
    after = f"{table.select_statement} WHERE {condition} AND ({key}) > ({marks}) {order}"
    indexes = [table.columns.index(column) for column in table.key]
    found = connection.execute(first, values).fetchall()
    while found:
        yield from found
        last = tuple(found[-1][i] for i in indexes)
        found = connection.execute(after, (*values, *last)).fetchall()


def _plain(value: Any, database: Database) -> Any:
    """A value without encryption: an export can be imported where the key is not."""
    if isinstance(value, bytes) and value.startswith(SEALED_PREFIX):
        return add_checksum(open_blob(database, value))
    return value


def _to_json(value: Any) -> Any:
    return {"b64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _exported_tables(schema: Schema) -> list[Table]:
    derived = {name for name, _ in schema.derived_tables}
    return [table for table in tables_of(schema) if table.name not in derived]


def _entry_path(schema: Schema, table: str) -> str:
    return f"{schema.name.replace(' ', '-')}/{table}.jsonl"


async def import_from(
    file: Path,
    database: Database,
    schemas: Sequence[Schema],
    *,
    existing: Literal["refuse", "keep"] = "refuse",
) -> ExportManifest:
    """Import a file in one transaction; new rows of others wait meanwhile.

    Args:
        file: Made by `export_to`.
        database: The database; it may hold rows already.
        schemas: The schemas that may be imported.
        existing: What to do with a row whose key exists already: raise `ImportRefused`, or keep
            the existing row.
    """
    manifest = await asyncio.to_thread(read_manifest, file, schemas)
    known = {schema.name: schema for schema in schemas}

    def work(connection: Connection) -> None:
        with zipfile.ZipFile(file) as archive:
            for part in manifest.parts:
                into = _SchemaImport(connection, known[part.name], database, existing == "keep")
                for table in part.tables:
                    into.import_table(archive, table)
                into.finish()

    try:
        await database.write(work)
    except Conflict as problem:
        raise ImportRefused(
            f"{database.name} already has rows of {file}; nothing was changed. Import into another "
            "database, or repeat with --keep to keep the existing rows"
        ) from problem
    return manifest


class _SchemaImport:
    """The import of the tables of one schema."""

    def __init__(
        self, connection: Connection, schema: Schema, database: Database, keep: bool
    ) -> None:
        self._connection, self._schema, self._database = connection, schema, database
        self._tables = {table.name: table for table in tables_of(schema)}
        self._on_conflict = " ON CONFLICT DO NOTHING" if keep else ""
        self._checksummed = dict(schema.checksummed)
        self._lock_tables()
        # Assigned row numbers continue after the existing ones, in the same order.
        self._offsets = {name: self._max_key(table) for name, table in self._tables.items()}

    def _max_key(self, table: Table) -> int:
        if not table.auto_increment:
            return 0
        statement = f"SELECT coalesce(max({table.key[0]}), 0) FROM {table.name}"
        highest = self._connection.execute(statement).fetchone()[0]
        if self._database.dialect == "sqlite":
            return highest
        # A transaction does not see rows that were committed after it began, but their numbers.
        assigned = (
            "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence(?, ?)::regclass), 0)"
        )
        values = (table.name, table.key[0])
        return max(highest, self._connection.execute(assigned, values).fetchone()[0])

    def _lock_tables(self) -> None:
        """Let no other process assign row numbers before the commit."""
        names = [name for name, table in self._tables.items() if table.auto_increment]
        if names and self._database.dialect == "postgres":
            tables = ", ".join(sorted(names))
            self._connection.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")

    def import_table(self, archive: zipfile.ZipFile, exported: ExportedTable) -> None:
        """Import the rows of one table."""
        table = self._tables[exported.name]
        shifted = {
            column: of for name, column, of in self._schema.foreign_keys if name == table.name
        }
        if table.auto_increment:
            shifted[table.key[0]] = table.name
        shifts = [(table.columns.index(name), self._offsets[of]) for name, of in shifted.items()]
        columns = self._checksummed.get(table.name, ())
        checksummed = [i for i, column in enumerate(table.columns) if column in columns]
        rows = (
            self._checked_row(row, shifts, checksummed)
            for row in _read_rows(archive, self._schema, exported)
        )
        while batch := list(islice(rows, BATCH_ROWS)):
            self._connection.executemany(table.insert_statement + self._on_conflict, batch)

    def _checked_row(
        self, row: list[Any], shifts: list[tuple[int, int]], checksummed: list[int]
    ) -> list[Any]:
        for i in checksummed:
            if row[i] is not None:
                data = verify_checksum(row[i], "a row of the file")
                if self._schema.sealed:
                    row[i] = seal_blob(self._database, data)
        for i, offset in shifts:
            if row[i] is not None:
                row[i] += offset
        return row

    def finish(self) -> None:
        """Recompute derived tables and sequences."""
        for _, statements in self._schema.derived_tables:
            for statement in statements:
                self._connection.execute(statement)
        if self._database.dialect == "postgres":
            for table in self._tables.values():
                if table.auto_increment:
                    self._advance_sequence(table)

    def _advance_sequence(self, table: Table) -> None:
        highest = self._max_key(table)
        if highest:
            self._connection.execute(
                "SELECT setval(pg_get_serial_sequence(?, ?), ?)",
                (table.name, table.key[0], highest),
            )


def read_manifest(file: Path, schemas: Sequence[Schema]) -> ExportManifest:
    """The manifest of a file, after all of it was checked."""
    known = {schema.name: schema for schema in schemas}
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = msgspec.json.decode(archive.read(MANIFEST_NAME), type=ExportManifest)
            for part in manifest.parts:
                _check_schema_version(file, part, known.get(part.name))
                for table in part.tables:
                    _check_table(file, archive, known[part.name], table)
    except OSError as problem:
        raise ImportRefused(f"cannot read {file}: {problem.strerror}; check the path") from None
    except (zipfile.BadZipFile, KeyError, EOFError, msgspec.MsgspecError) as problem:
        raise ImportRefused(
            f"{file} is not an export of a store, or is damaged: {problem}"
        ) from None
    return manifest


def _check_schema_version(file: Path, part: ExportedSchema, schema: Schema | None) -> None:
    if schema is None or part.version != len(schema.migrations):
        raise ImportRefused(
            f"{file} was exported by another version of evoclaw ({part.name}, {part.version}); "
            "export and import with the same version"
        )


def _check_table(
    file: Path, archive: zipfile.ZipFile, schema: Schema, exported: ExportedTable
) -> None:
    found = {table.name: table for table in _exported_tables(schema)}.get(exported.name)
    if found is None or found.columns != exported.columns:
        raise ImportRefused(f"{file} has an unknown table: {exported.name}")
    digest = hashlib.sha256()
    with archive.open(_entry_path(schema, exported.name)) as entry:
        while block := entry.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != exported.sha256:
        raise ImportRefused(f"{file} is damaged: {exported.name} does not match its checksum")


def _read_rows(
    archive: zipfile.ZipFile, schema: Schema, exported: ExportedTable
) -> Iterator[list[Any]]:
    with archive.open(_entry_path(schema, exported.name)) as entry:
        while line := entry.readline(MAX_ROW_BYTES):
            row: list[Any] = msgspec.json.decode(line, type=list[Any])
            if len(row) != len(exported.columns):
                raise ImportRefused(
                    f"{exported.name}: a row has {len(row)} values, not {len(exported.columns)}"
                )
            yield [
                b64decode(value["b64"]) if isinstance(value, dict) else value  # pyright: ignore
                for value in row
            ]
