"""Opening a store's file: made whole or not at all, looked through, set aside if damaged.

StoreError          something could not be kept or read; it was not done, and may be tried again
├── StoreFull       there is no room on the disk; works again when there is
└── DamagedStore    the file is not what was written; it is never begun anew without a word
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import struct
import time
import zlib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from evoclaw.core.errors import ConfigError, EvoClawError

PATIENCE = 5.0
"""Seconds another process may hold the file before we give up."""
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
CLOSED_TO_US = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
LARGEST_LOG = 4 << 20
"""Bytes a log may keep once what is in it was moved to the file."""
LOG_MAGIC = 0x377F0682
"""The first word of a write-ahead log; one more if its sums are over big-endian words."""
LOOKS = 5
LOG_HEAD, FRAME_HEAD = 32, 24
WORD = 0xFFFFFFFF


class StoreError(EvoClawError):
    """Something could not be kept or read."""


class StoreFull(StoreError):
    """There is no room on the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"no room on the disk of {path}; nothing was stored, free some and go on")
        self.path = path


class DamagedStore(StoreError):
    """The file is not what was written."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"{path} is damaged ({problem}); it was left as it is: restore it, "
            "or have it set aside and begin with an empty history"
        )
        self.path, self.problem = path, problem


class Schema(Struct, frozen=True):
    """What a kind of store holds, and the way there from its older forms."""

    name: str
    """Of the kind; a file of another kind is refused."""
    steps: tuple[tuple[str, ...], ...]
    """The statements of each version, in order; never changed once released, only added to."""
    sealed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tables, and their columns that hold `sealed` bytes; looked at when the file is opened."""

    @property
    def mark(self) -> int:
        """Tells a file of this kind from any other."""
        return zlib.crc32(self.name.encode()) & 0x7FFFFFFF


def sealed(data: bytes) -> bytes:
    """Bytes and their checksum; SQLite itself would not notice a flipped bit in a value."""
    return data + zlib.crc32(data).to_bytes(4, "big")


def unsealed(blob: bytes, path: Path) -> bytes:
    """The bytes that were sealed."""
    data = blob[:-4]
    if zlib.crc32(data).to_bytes(4, "big") != blob[-4:]:
        raise DamagedStore(path, "a value does not match its checksum")
    return data


def explained(problem: sqlite3.Error, path: Path) -> Exception:
    """The same for a caller; a fault of our own statements stays what it is."""
    code = getattr(problem, "sqlite_errorcode", 0)
    found: Exception = problem
    if code in FULL:
        found = StoreFull(path)
    elif code & 0xFF in DAMAGED or "decode to UTF-8" in str(problem):
        found = DamagedStore(path, str(problem))
    elif code & 0xFF in CLOSED_TO_US:
        found = ConfigError(
            f"cannot use {path}: {problem}; check its rights or choose another place"
        )
    elif isinstance(problem, sqlite3.OperationalError):
        found = StoreError(f"{path}: {problem}")
    if found is not problem:
        found.__cause__ = problem
    return found


def open_file(
    path: Path, schema: Schema, durable: bool, set_aside: bool
) -> tuple[sqlite3.Connection, Path | None]:
    """A connection to a sound file, and where a damaged one was moved to."""
    aside: Path | None = None
    try:
        path = path.resolve()
        try:
            _prepare(path, schema)
        except DamagedStore:
            if not set_aside:
                raise
            aside = _move_aside(path)
            _prepare(path, schema)
        return _connected(path, schema, durable), aside
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise StoreFull(path) from None
        raise ConfigError(
            f"cannot use {path}: {problem.strerror}; check its rights or choose another place"
        ) from None
    except sqlite3.Error as problem:
        raise explained(problem, path) from problem


def _connected(path: Path, schema: Schema, durable: bool) -> sqlite3.Connection:
    connection = _connect(path, "rw")
    try:
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        connection.execute(f"PRAGMA journal_size_limit={LARGEST_LOG}")
        _migrate(connection, schema)
        # From now on nobody is waited for in the thread of those who ask.
        connection.execute("PRAGMA busy_timeout=0")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,
    )


def _prepare(path: Path, schema: Schema) -> None:
    """Make the file if there is none; look through it if there is."""
    wal = beside(path, "-wal")
    if not path.exists():
        if wal.exists() and wal.stat().st_size:
            raise DamagedStore(path, "only its log is left")
        path.parent.mkdir(parents=True, exist_ok=True)
        _create(path, schema)
    if not path.is_file():
        raise IsADirectoryError(errno.EISDIR, "not a file")
    # We never leave an empty one, and SQLite would quietly begin anew in it.
    if not path.stat().st_size:
        raise DamagedStore(path, "it is empty")
    if wal.exists() and log_is_damaged(wal):
        raise DamagedStore(path, "its log is broken in the middle")
    try:
        # A connection that only reads would not look at the rules of a table. One that may write
        # empties the log when it is closed as the last one; so another one outlives it, and what
        # is damaged stays as it was found, and is found again the next time.
        with closing(_connect(path, "ro")) as last:
            last.execute("SELECT 1 FROM sqlite_schema").fetchone()
            with closing(_connect(path, "rw")) as connection:
                _inspect(connection, path, schema)
    except UnicodeDecodeError as problem:
        raise DamagedStore(path, "a name is no text any more") from problem
    except sqlite3.Error as problem:
        raise explained(problem, path) from problem


def _create(path: Path, schema: Schema) -> None:
    """Make a file under another name first: it appears whole, or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        # It holds whatever tools saw: for the owner's eyes alone.
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(_connect(draft, "rw")) as connection:
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                raise ConfigError(f"{path} must be on a local disk; choose another place")
            connection.execute(f"PRAGMA application_id={schema.mark}")
            _migrate(connection, schema)
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # Another process was quicker; its file is as good.
        except PermissionError:
            draft.rename(path)  # No second names on this file system.
    finally:
        for name in (draft, beside(draft, "-wal"), beside(draft, "-shm")):
            name.unlink(missing_ok=True)
    sync_folder(path.parent)


def _inspect(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    def pragma(name: str) -> Any:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    connection.execute("PRAGMA query_only=ON")
    if pragma("journal_mode") != "wal":
        raise DamagedStore(path, "it does not know of its log")
    if pragma("application_id") != schema.mark:
        raise ConfigError(f"{path} is not a {schema.name}; choose another place")
    version = pragma("user_version")
    if version > len(schema.steps):
        raise ConfigError(
            f"{path} was written by a newer version of evoclaw; update, or choose another place"
        )
    # Not the quick check: only this one compares tables with their indexes, which is what finds
    # a flipped bit in an id.
    problem = pragma("integrity_check(1)")
    if problem != "ok":
        raise DamagedStore(path, problem)
    if _tables(connection) != _tables_of(schema, version):
        raise DamagedStore(path, "its tables are not the ones that were made")
    if version == len(schema.steps):
        _check_seals(connection, path, schema)


def _check_seals(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    for table, columns in schema.sealed:
        rows = connection.execute(f"SELECT * FROM {table}")
        places = [place for place, (name, *_) in enumerate(rows.description) if name in columns]
        for row in rows:
            for place in places:
                if row[place] is not None:
                    unsealed(row[place], path)


def _migrate(connection: sqlite3.Connection, schema: Schema) -> None:
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for step in schema.steps[version:]:
        for statement in step:
            connection.execute(statement)
    if version < len(schema.steps):
        connection.execute(f"PRAGMA user_version={len(schema.steps)}")
    connection.execute("COMMIT")


def _tables(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()


def _tables_of(schema: Schema, version: int) -> list[Any]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _migrate(connection, Schema(schema.name, schema.steps[:version]))
        return _tables(connection)


def log_is_damaged(wal: Path) -> bool:
    """Whether a write-ahead log is broken before its end.

    SQLite reads a log up to the first frame whose sum is wrong and forgets the rest. That is right
    for what a power cut tore: the transaction being written, never one that another followed.
    Two ends of transactions after a broken frame are damage, and what SQLite would forget had
    been acknowledged.
    """
    before: tuple[bytes, int] | None = None
    for _ in range(LOOKS):
        found = _broken_frame(wal)
        # Another process may be writing: only what stays broken is damage.
        if found is None or found == before:
            return found is not None
        before = found
    return False


def _broken_frame(wal: Path) -> tuple[bytes, int] | None:
    """The log's head, and the number of the first broken frame if there is damage."""
    with wal.open("rb") as file:
        head = file.read(LOG_HEAD)
        if len(head) < LOG_HEAD:
            return None
        magic, _, page, _, _, _, *stored = struct.unpack(">8I", head)
        order = "<" if magic == LOG_MAGIC else ">"
        sums = _sums(head[:24], order, (0, 0))
        if magic & ~1 != LOG_MAGIC or sums != tuple(stored):
            return (head, 0) if any(file.read(FRAME_HEAD)) else None
        number, broken, ends = 0, 0, 0
        while len(frame := file.read(FRAME_HEAD + page)) == FRAME_HEAD + page:
            number += 1
            ours = frame[8:16] == head[16:24]
            if not broken:
                sums = _sums(frame[:8] + frame[FRAME_HEAD:], order, sums)
                broken = 0 if ours and sums == struct.unpack(">2I", frame[16:24]) else number
            if broken and ours and any(frame[4:8]):
                ends += 1
        return (head, broken) if ends > 1 else None


def _sums(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = first + even + second & WORD
        second = second + odd + first & WORD
    return first, second


def beside(path: Path, suffix: str) -> Path:
    """The name SQLite gives to a companion of a file."""
    return path.with_name(path.name + suffix)


def _move_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, count = beside(path, f".damaged-{stamp}"), 1
    while any(beside(aside, suffix).exists() for suffix in ("", "-wal", "-shm")):
        count += 1
        aside = beside(path, f".damaged-{stamp}-{count}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            beside(path, suffix).rename(beside(aside, suffix))
    sync_folder(path.parent)
    return aside


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, as `fsync` has a file's content."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
