"""Everything of a database as one file that any other database can take in.

The file is a zip: one JSON array a line for each row, a file for each table, and a manifest with
how many there are and their checksums. The same content makes the same file, byte for byte,
whichever database it came from.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import (
    Conflict,
    Connection,
    Database,
    Schema,
    StoreError,
    unsealed,
)
from evoclaw.store.databases.tables import Table, tables_of

MANIFEST = "manifest.json"
AT_ONCE = 200
"""Rows that are in memory at the same time."""
LONGEST = 1 << 28
"""Bytes of a row."""
NEVER = (1980, 1, 1, 0, 0, 0)
"""The time that is written into the file: none, so that the same content is the same file."""


class MovedTable(Struct, frozen=True):
    """One table in the file."""

    name: str
    columns: tuple[str, ...]
    rows: int
    sha256: str


class MovedPart(Struct, frozen=True):
    """One kind of store in the file."""

    name: str
    version: int
    tables: tuple[MovedTable, ...]


class Manifest(Struct, frozen=True):
    """What is in a file."""

    parts: tuple[MovedPart, ...]
    tenant: str = ""
    """Whose all of it is; empty is everybody's."""
    format: Literal[1] = 1

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(table.rows for part in self.parts for table in part.tables)


class NotMoved(StoreError):
    """A file cannot be taken in; nothing was changed."""


async def export_to(
    file: Path, database: Database, schemas: Sequence[Schema], *, tenant: str = ""
) -> Manifest:
    """Write everything into a file, as it is at one moment; nobody writes meanwhile.

    Args:
        file: Made anew, for this user alone.
        database: Where it is.
        schemas: What is taken out of it.
        tenant: Only what is this one's. What is the machine's, as keys of devices and what was
            spent, stays.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}.new")

    def work(connection: Connection) -> Manifest:
        with suppress(FileNotFoundError):
            draft.unlink()
        with _made(draft) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            parts = tuple(_export(archive, connection, schema, tenant) for schema in schemas)
            manifest = Manifest(parts, tenant)
            archive.writestr(_entry(MANIFEST), msgspec.json.encode(manifest))
        return manifest

    try:
        manifest = await database.write(work)
        await asyncio.to_thread(os.replace, draft, file)
    except OSError as problem:
        raise ConfigError(f"cannot write {file}: {problem.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _made(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, NEVER)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _export(
    archive: zipfile.ZipFile, connection: Connection, schema: Schema, tenant: str
) -> MovedPart:
    tables = [
        _export_table(archive, connection, schema, table, tenant)
        for table in _moved(schema)
        if not tenant or "tenant" in table.columns
    ]
    return MovedPart(schema.name, len(schema.steps), tuple(tables))


def _export_table(
    archive: zipfile.ZipFile, connection: Connection, schema: Schema, table: Table, tenant: str
) -> MovedTable:
    digest, count = hashlib.sha256(), 0
    with archive.open(_entry(_place(schema, table.name)), "w", force_zip64=True) as entry:
        for row in _rows(connection, table, tenant):
            line = msgspec.json.encode([_plain(value) for value in row]) + b"\n"
            digest.update(line)
            entry.write(line)
            count += 1
    return MovedTable(table.name, table.columns, count, digest.hexdigest())


def _rows(connection: Connection, table: Table, tenant: str) -> Iterator[Sequence[Any]]:
    """All rows by their key, a few at a time: no database has to hold all of them for us."""
    key, marks = ", ".join(table.key), ", ".join("?" * len(table.key))
    whose, values = ("tenant = ?", (tenant,)) if tenant else ("true", ())
    first = f"{table.selected} WHERE {whose} ORDER BY {key} LIMIT {AT_ONCE}"
    after = f"{table.selected} WHERE {whose} AND ({key}) > ({marks}) ORDER BY {key} LIMIT {AT_ONCE}"
    places = [table.columns.index(column) for column in table.key]
    found = connection.execute(first, values).fetchall()
    while found:
        yield from found
        last = tuple(found[-1][place] for place in places)
        found = connection.execute(after, (*values, *last)).fetchall()


def _plain(value: Any) -> Any:
    return {"b64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _moved(schema: Schema) -> list[Table]:
    derived = {name for name, _ in schema.derived}
    return [table for table in tables_of(schema) if table.name not in derived]


def _place(schema: Schema, table: str) -> str:
    return f"{schema.name.replace(' ', '-')}/{table}.jsonl"


async def import_from(
    file: Path,
    database: Database,
    schemas: Sequence[Schema],
    *,
    existing: Literal["refuse", "keep"] = "refuse",
) -> Manifest:
    """Take in a file, all of it or nothing; nobody writes meanwhile.

    Args:
        file: As `export_to` made it.
        database: Which may hold something already.
        schemas: What it may hold.
        existing: What becomes of something whose id is there already: `NotMoved`, or what is
            there stays as it is.
    """
    manifest = await asyncio.to_thread(read_manifest, file, schemas)
    known = {schema.name: schema for schema in schemas}

    def work(connection: Connection) -> None:
        with zipfile.ZipFile(file) as archive:
            for part in manifest.parts:
                into = _Importing(connection, known[part.name], database, existing == "keep")
                for table in part.tables:
                    into.take(archive, table)
                into.finish()

    try:
        await database.write(work)
    except Conflict as problem:
        raise NotMoved(
            f"something of {file} is in {database.name} already; nothing was changed: take it in "
            "elsewhere, or say that what is there stays"
        ) from problem
    return manifest


class _Importing:
    """The tables of one part, being filled."""

    def __init__(
        self, connection: Connection, schema: Schema, database: Database, keep: bool
    ) -> None:
        self._connection, self._schema, self._database = connection, schema, database
        self._tables = {table.name: table for table in tables_of(schema)}
        self._end = " ON CONFLICT DO NOTHING" if keep else ""
        self._sealed = dict(schema.sealed)
        # Numbers that the database gave: behind those that are there, in the same order.
        self._offsets = {name: self._highest(one) for name, one in self._tables.items()}

    def _highest(self, table: Table) -> int:
        if not table.counted:
            return 0
        statement = f"SELECT coalesce(max({table.key[0]}), 0) FROM {table.name}"
        return self._connection.execute(statement).fetchone()[0]

    def take(self, archive: zipfile.ZipFile, moved: MovedTable) -> None:
        """Fill one table."""
        table = self._tables[moved.name]
        shifted = {column: of for name, column, of in self._schema.refers if name == table.name}
        if table.counted:
            shifted[table.key[0]] = table.name
        shifts = [(table.columns.index(one), self._offsets[of]) for one, of in shifted.items()]
        columns = self._sealed.get(table.name, ())
        seals = [place for place, column in enumerate(table.columns) if column in columns]
        rows = (self._row(one, shifts, seals) for one in _lines(archive, self._schema, moved))
        while some := list(islice(rows, AT_ONCE)):
            self._connection.executemany(table.inserted + self._end, some)

    def _row(self, row: list[Any], shifts: list[tuple[int, int]], seals: list[int]) -> list[Any]:
        for place in seals:
            if row[place] is not None:
                unsealed(row[place], "a row of the file")
        for place, offset in shifts:
            if row[place] is not None:
                row[place] += offset
        return row

    def finish(self) -> None:
        """Bring what depends on the tables in order."""
        for _, statements in self._schema.derived:
            for statement in statements:
                self._connection.execute(statement)
        if self._database.dialect == "postgres":
            for table in self._tables.values():
                if table.counted:
                    self._count_on(table)

    def _count_on(self, table: Table) -> None:
        highest = self._highest(table)
        if highest:
            self._connection.execute(
                "SELECT setval(pg_get_serial_sequence(?, ?), ?)",
                (table.name, table.key[0], highest),
            )


def read_manifest(file: Path, schemas: Sequence[Schema]) -> Manifest:
    """What is in a file, if all of it is sound and can be taken in here."""
    known = {schema.name: schema for schema in schemas}
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = msgspec.json.decode(archive.read(MANIFEST), type=Manifest)
            for part in manifest.parts:
                _check_part(file, part, known.get(part.name))
                for table in part.tables:
                    _check_table(file, archive, known[part.name], table)
    except OSError as problem:
        raise NotMoved(f"cannot read {file}: {problem.strerror}") from None
    except (zipfile.BadZipFile, KeyError, EOFError, msgspec.MsgspecError) as problem:
        raise NotMoved(f"{file} is no export of a store, or is damaged: {problem}") from None
    return manifest


def _check_part(file: Path, part: MovedPart, schema: Schema | None) -> None:
    if schema is None or part.version != len(schema.steps):
        raise NotMoved(
            f"{file} was made by another version of evoclaw ({part.name}, {part.version}); "
            "export and import with the same one"
        )


def _check_table(file: Path, archive: zipfile.ZipFile, schema: Schema, moved: MovedTable) -> None:
    found = {table.name: table for table in _moved(schema)}.get(moved.name)
    if found is None or found.columns != moved.columns:
        raise NotMoved(f"{file} has a table that is not known here: {moved.name}")
    digest = hashlib.sha256()
    with archive.open(_place(schema, moved.name)) as entry:
        while block := entry.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != moved.sha256:
        raise NotMoved(f"{file} is damaged: {moved.name} does not match its checksum")


def _lines(archive: zipfile.ZipFile, schema: Schema, moved: MovedTable) -> Iterator[list[Any]]:
    with archive.open(_place(schema, moved.name)) as entry:
        while line := entry.readline(LONGEST):
            row: list[Any] = msgspec.json.decode(line, type=list[Any])
            if len(row) != len(moved.columns):
                raise NotMoved(f"{moved.name}: a row has {len(row)} values")
            yield [
                b64decode(one["b64"]) if isinstance(one, dict) else one  # pyright: ignore
                for one in row
            ]
