"""Opens a SQLite file: creates it atomically, checks its integrity, moves a damaged one aside."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import struct
import time
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import (
    Conflict,
    DamagedStore,
    Schema,
    StoreError,
    StoreFull,
    verify_checksum,
)

UNAVAILABLE_TIMEOUT_S = 5.0
"""Seconds to wait for a locked file or an unreachable server before a request fails."""
FULL_DISK_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
CORRUPTION_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
DUPLICATE_KEY_CODES = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
ACCESS_DENIED_CODES = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
MAX_WAL_BYTES = 4 << 20
"""Bytes of the write-ahead log at which it is checkpointed, and which it keeps after that."""
PAGE_BYTES = 1024
"""Of a new file. A commit writes each page that it changed as a whole, and most changes are a small
row in each of several indexes: the smaller the pages, the less is written."""
WAL_MAGIC = 0x377F0682
"""The first word of a write-ahead log; one more if its checksums are over big-endian words."""
WAL_CHECK_ATTEMPTS = 5
MAX_WAL_RESTARTS = 1 << 20
"""Restarts of a log after which no frame from before can be left in it."""
WAL_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
UINT32_MASK = 0xFFFFFFFF


class SqliteFileFormat(Protocol):
    """Which schemas a SQLite file holds, and how it is created and migrated."""

    @property
    def name(self) -> str:
        """The kind of file; a file of another kind is refused."""
        ...

    @property
    def application_id(self) -> int:
        """The SQLite application id, which tells a file of this kind from any other."""
        ...

    @property
    def synchronous(self) -> str:
        """The value of PRAGMA synchronous for a file that need not be durable."""
        ...

    def create_tables(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file."""
        ...

    def read_contents(self, connection: sqlite3.Connection) -> FileContents:
        """The schemas in a file and their versions."""
        ...

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Migrate a file to the newest version."""
        ...


class FileContents(Struct, frozen=True):
    """The schemas that a file holds."""

    versions: tuple[tuple[Schema, int], ...]
    """Each known schema, and its version."""
    has_unknown_schemas: bool = False
    """Whether the file holds schemas that this process does not use."""
    extra_tables: tuple[str, ...] = ()
    """The statements that create the tables that belong to no schema."""


class SingleSchemaFormat(Struct, frozen=True):
    """A file with one schema."""

    schema: Schema
    synchronous: str = "OFF"

    @property
    def name(self) -> str:
        """The name of the schema."""
        return self.schema.name

    @property
    def application_id(self) -> int:
        """The application id of the schema."""
        return self.schema.application_id

    def create_tables(self, connection: sqlite3.Connection) -> None:
        """Create all tables."""
        self.migrate(connection)

    def read_contents(self, connection: sqlite3.Connection) -> FileContents:
        """The version of the schema."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return FileContents(((self.schema, version),))

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Apply the missing migrations in one transaction."""
        steps = self.schema.migrations
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for step in steps[version:]:
            for statement in step:
                connection.execute(statement)
        if version < len(steps):
            connection.execute(f"PRAGMA user_version={len(steps)}")
        connection.execute("COMMIT")


def translate_error(problem: sqlite3.Error, path: Path) -> Exception:
    """The error for the caller; an error in a statement itself is returned unchanged."""
    code = getattr(problem, "sqlite_errorcode", 0)
    found: Exception = problem
    if code in FULL_DISK_CODES:
        found = StoreFull(path)
    elif code in DUPLICATE_KEY_CODES:
        found = Conflict(f"{path}: {problem}")
    elif code & 0xFF in CORRUPTION_CODES or "decode to UTF-8" in str(problem):
        found = DamagedStore(path, str(problem))
    elif code & 0xFF in ACCESS_DENIED_CODES:
        found = ConfigError(
            f"cannot use {path}: {problem}; check its permissions or choose another path"
        )
    elif isinstance(problem, sqlite3.OperationalError):
        found = StoreError(f"{path}: {problem}")
    if found is not problem:
        found.__cause__ = problem
    return found


def open_file(
    path: Path, file_format: SqliteFileFormat, durable: bool, set_aside: bool
) -> tuple[sqlite3.Connection, Path | None]:
    """A connection to an intact file, and where a damaged one was moved to."""
    aside: Path | None = None
    try:
        path = path.resolve()
        try:
            _create_or_inspect(path, file_format)
        except DamagedStore:
            if not set_aside:
                raise
            aside = move_aside(path, "damaged")
            _create_or_inspect(path, file_format)
        return _connect_and_migrate(path, file_format, durable), aside
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise StoreFull(path) from None
        raise ConfigError(
            f"cannot use {path}: {problem.strerror}; check its permissions or choose another path"
        ) from None
    except sqlite3.Error as problem:
        raise translate_error(problem, path) from problem


def _connect_and_migrate(
    path: Path, file_format: SqliteFileFormat, durable: bool
) -> sqlite3.Connection:
    connection = connect(path, "rw")
    try:
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else file_format.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint={MAX_WAL_BYTES // page_bytes}")
        file_format.migrate(connection)
        # From now on requests run in the event loop: never block there for another process.
        connection.execute("PRAGMA busy_timeout=0")
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection without implicit transactions."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=UNAVAILABLE_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _create_or_inspect(path: Path, file_format: SqliteFileFormat) -> None:
    """Create the file if it is missing, then check it."""
    wal = companion_path(path, "-wal")
    if not path.exists():
        if wal.exists() and wal.stat().st_size:
            raise DamagedStore(path, "only its write-ahead log is left")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _create(path, file_format)
    inspect_file(path, file_format)


def inspect_file(path: Path, file_format: SqliteFileFormat) -> None:
    """Check the integrity of a file without changing it."""
    wal = companion_path(path, "-wal")
    if not path.is_file():
        raise IsADirectoryError(errno.EISDIR, "not a file")
    # EvoClaw never creates an empty file; SQLite would silently start a new database in it.
    if not path.stat().st_size:
        raise DamagedStore(path, "it is empty")
    if wal.exists() and wal_is_damaged(wal):
        raise DamagedStore(path, "its write-ahead log is damaged")
    try:
        # A read-only connection does not check the constraints of a table. A writing one empties
        # the write-ahead log when it is the last to close. So a second connection stays open
        # longer: a damaged file stays unchanged, and is found again the next time.
        with closing(connect(path, "ro")) as last:
            last.execute("SELECT 1 FROM sqlite_schema").fetchone()
            with closing(connect(path, "rw")) as connection:
                _inspect(connection, path, file_format)
    except UnicodeDecodeError as problem:
        raise DamagedStore(path, "a name is not valid UTF-8") from problem
    except sqlite3.Error as problem:
        raise translate_error(problem, path) from problem


def _create(path: Path, file_format: SqliteFileFormat) -> None:
    """Create the file under a temporary name first, so that it appears complete or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        # It holds whatever tools returned: readable by the owner only.
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(connect(draft, "rw")) as connection:
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                raise ConfigError(f"{path} must be on a local disk; choose another path")
            connection.execute(f"PRAGMA application_id={file_format.application_id}")
            file_format.create_tables(connection)
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # Another process created the same file first.
        except PermissionError:
            draft.rename(path)  # This file system has no hard links.
    finally:
        for name in (draft, companion_path(draft, "-wal"), companion_path(draft, "-shm")):
            name.unlink(missing_ok=True)
    sync_folder(path.parent)


def _inspect(connection: sqlite3.Connection, path: Path, file_format: SqliteFileFormat) -> None:
    def pragma(name: str) -> Any:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    connection.execute("PRAGMA query_only=ON")
    if pragma("journal_mode") != "wal":
        raise DamagedStore(path, "its journal mode is not WAL")
    if pragma("application_id") != file_format.application_id:
        raise ConfigError(f"{path} is not a file of kind {file_format.name!r}; choose another path")
    # Compare within one transaction: another process may be migrating the file.
    connection.execute("BEGIN")
    contents = file_format.read_contents(connection)
    for schema, version in contents.versions:
        refuse_newer_schema(schema, version, path)
    expected, found = _expected_tables(contents), _tables(connection)
    if not set(expected) <= set(found) or not (
        contents.has_unknown_schemas or len(expected) == len(found)
    ):
        raise DamagedStore(path, "its tables are not those of its schemas")
    # Not `quick_check`: only `integrity_check` compares tables with their indexes, which finds a
    # flipped bit in an id. Tables of unknown schemas are checked by the processes that use them.
    own_tables = [f"({name})" for kind, name, made in expected if _is_ordinary_table(kind, made)]
    for which in own_tables if contents.has_unknown_schemas else ["(1)"]:
        problem = pragma(f"integrity_check{which}")
        if problem != "ok":
            raise DamagedStore(path, problem)
    for schema, version in contents.versions:
        if version == len(schema.migrations):
            _verify_checksums(connection, path, schema)


def _is_ordinary_table(kind: str, made: str | None) -> bool:
    return kind == "table" and made is not None and not made.startswith("CREATE VIRTUAL")


def refuse_newer_schema(schema: Schema, version: int, location: Path | str) -> None:
    """Raise if a newer version of EvoClaw has migrated the schema."""
    if version > len(schema.migrations):
        raise ConfigError(
            f"{location} was written by a newer version of evoclaw ({schema.name}, {version}); "
            "update evoclaw, or choose another path or database"
        )


def _verify_checksums(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    for table, columns in schema.checksummed:
        rows = connection.execute(f"SELECT * FROM {table}")
        indexes = [i for i, (name, *_) in enumerate(rows.description) if name in columns]
        for row in rows:
            for i in indexes:
                if row[i] is not None:
                    verify_checksum(row[i], path)


def _tables(connection: sqlite3.Connection) -> list[tuple[str, str, str | None]]:
    return connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()


def _expected_tables(contents: FileContents) -> list[tuple[str, str, str | None]]:
    """The tables that the file should have."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        steps = [
            step for schema, version in contents.versions for step in schema.migrations[:version]
        ]
        for statement in (*contents.extra_tables, *chain.from_iterable(steps)):
            connection.execute(statement)
        return _tables(connection)


def wal_is_damaged(wal: Path) -> bool:
    """Whether a write-ahead log is damaged before its end.

    SQLite reads a log up to the first frame with a wrong checksum and drops the rest. That is right
    after a power cut, which can tear only the last transaction. Two ends of transactions after a
    broken frame are damage: SQLite would drop a transaction that had been acknowledged. So is a
    frame that is neither of this log, nor left from before its last restarts, nor never written.
    """
    before: tuple[bytes, int] | None = None
    for _ in range(WAL_CHECK_ATTEMPTS):
        found = _broken_frame(wal)
        # Another process may be writing: only a frame that stays broken is damage.
        if found is None or found == before:
            return found is not None
        before = found
    return False


def _broken_frame(wal: Path) -> tuple[bytes, int] | None:
    """The header of the log and the number of its first broken frame, if it is damaged."""
    with wal.open("rb") as file:
        head = file.read(WAL_HEADER_BYTES)
        if len(head) < WAL_HEADER_BYTES:
            return None
        magic, _, page, _, _, _, *stored = struct.unpack(">8I", head)
        order = "<" if magic == WAL_MAGIC else ">"
        sums = _wal_checksum(head[:24], order, (0, 0))
        if magic & ~1 != WAL_MAGIC or sums != tuple(stored):
            return (head, 0) if any(file.read(FRAME_HEADER_BYTES)) else None
        number, broken, ends = 0, 0, 0
        while len(frame := file.read(FRAME_HEADER_BYTES + page)) == FRAME_HEADER_BYTES + page:
            number += 1
            ours = frame[8:16] == head[16:24]
            if not broken:
                sums = _wal_checksum(frame[:8] + frame[FRAME_HEADER_BYTES:], order, sums)
                broken = 0 if ours and sums == struct.unpack(">2I", frame[16:24]) else number
            if broken and ours and any(frame[4:8]):
                ends += 1
            if broken and not _is_explained(frame, head):
                return head, broken
        return (head, broken) if ends > 1 else None


def _is_explained(frame: bytes, head: bytes) -> bool:
    """Whether SQLite wrote the header of a frame, in this log or before it was restarted.

    At each restart the first salt is incremented. A power cut tears writes between sectors, hence
    never within the salt: it is old, new, or was never written.
    """
    (salt,), (current,) = struct.unpack(">I", frame[8:12]), struct.unpack(">I", head[16:20])
    return not salt or (current - salt) & UINT32_MASK < MAX_WAL_RESTARTS


def _wal_checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = first + even + second & UINT32_MASK
        second = second + odd + first & UINT32_MASK
    return first, second


def companion_path(path: Path, suffix: str) -> Path:
    """The path of a companion file of SQLite, such as the write-ahead log."""
    return path.with_name(path.name + suffix)


def move_aside(path: Path, reason: str) -> Path:
    """Rename a file and its companions; the new name has the reason and the time."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, count = companion_path(path, f".{reason}-{stamp}"), 1
    while any(companion_path(aside, suffix).exists() for suffix in ("", "-wal", "-shm")):
        count += 1
        aside = companion_path(path, f".{reason}-{stamp}-{count}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            companion_path(path, suffix).rename(companion_path(aside, suffix))
    sync_folder(path.parent)
    return aside


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk, as `fsync` does for a file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
