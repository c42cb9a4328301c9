"""The interface of a database that runs functions in transactions, and the errors it raises.

StoreError              a read or write failed; nothing was stored, and the caller may retry
├── StoreUnavailable    the server cannot be reached; the run is suspended and resumes later
├── StoreFull           the disk is full; writes work again when there is room
├── Conflict            a row with that key exists already
├── DamagedStore        the stored bytes are not what was written; never overwritten silently
└── CommitUnknown       the connection was lost during a commit: it is unknown whether it succeeded
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from evoclaw.core.errors import EvoClawError, RunSuspended
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.steps import OnFailure, OnResult, Procedure, Step

T = TypeVar("T")

Dialect = Literal["sqlite", "postgres"]
NO_LIMIT = (1 << 63) - 1
"""The value for "no limit": not every database takes a negative one for that."""
MAX_IDS = 500
"""In one statement."""


class StoreError(EvoClawError):
    """A read or a write failed."""


class StoreUnavailable(StoreError, RunSuspended):
    """The server is unreachable or too busy; the request was not executed."""


class StoreFull(StoreError):
    """The disk is full."""

    def __init__(self, location: Path | str) -> None:
        super().__init__(
            f"the disk of {location} is full; nothing was stored. Free some space and retry"
        )
        self.location = location


class Conflict(StoreError):
    """A row with the same unique key exists already."""


class DamagedStore(StoreError):
    """The stored bytes are not what was written."""

    def __init__(self, location: Path | str, problem: str) -> None:
        super().__init__(
            f"{location} is damaged ({problem}) and was not changed. Restore it from a backup, "
            "or move it aside to start with an empty history"
        )
        self.location, self.problem = location, problem


class CommitUnknown(StoreError, RunSuspended):
    """The connection was lost during a commit, and not restored in time to look at the result."""

    def __init__(self, location: Path | str) -> None:
        super().__init__(
            f"the connection to {location} was lost during a commit: the write may or may "
            "not be stored; check before you repeat it"
        )
        self.location = location


class QueryResult(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Runs statements; placeholders are `?` or `?1` on every database."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> QueryResult:
        """Run one statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> QueryResult:
        """Run one statement for each of the rows."""
        ...


Work = Callable[[Connection], T]
"""A function that runs inside a transaction. It uses the connection and has no other side effect,
because it may be rolled back and run again. It never commits, and it is quick: it blocks the
database meanwhile."""


class Database(Protocol):
    """Reads and writes in transactions, and tells listeners what was written."""

    @property
    def name(self) -> str:
        """The file or the server, for messages; contains no secret."""
        ...

    @property
    def dialect(self) -> Dialect:
        """For the statements that differ between databases, such as a full-text search."""
        ...

    @property
    def cipher(self) -> BlobCipher:
        """Encrypts what runs hold; stores that hold none do not use it."""
        ...

    @property
    def commits(self) -> int:
        """How many transactions were committed."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds spent executing, so far; at one second per second the database is saturated."""
        ...

    @property
    def notices(self) -> Notices:
        """The notices that this process sends and receives."""
        ...

    def time(self) -> float:
        """Unix seconds: by the clock of the server, or of this machine for a file."""
        ...

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        """Run a function in a transaction; when this returns, it is committed.

        A caller that is cancelled does not know whether the write happened.

        Args:
            work: The function.
            wait: Whether to wait for the commit of this write and of all earlier ones: the barrier
                before any effect outside. Without, the commit is deferred: the result is returned
                as soon as it is known, and committed with the next write or a moment later. A
                write is never committed without those before it.
            notices: Delivered in this process when this returns, and with the commit to all
                processes that share the database.
        """
        ...

    async def apply(self, step: Step, *, notices: Sequence[Notice] = ()) -> Any:
        """Run a step; when this returns its result, it and all earlier ones are committed."""
        ...

    def defer(
        self,
        step: Step,
        *,
        notices: Sequence[Notice] = (),
        on_result: OnResult | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Run a step with the next one that is waited for, or a moment later.

        It is never committed without those before it. What depends on it must wait for `flush`.

        Args:
            step: The step. A shared one joins that of the same procedure that was deferred before
                and not sent yet, whose functions are called then.
            notices: As for `write`.
            on_result: Gets the result; again, if the step had to be repeated.
            on_failure: Gets an error; without, the write scope fails.
        """
        ...

    async def flush(self) -> None:
        """Wait until every earlier write of this write scope is committed.

        Raise what one of its deferred steps raised: then none of its later steps counts.
        """
        ...

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        """Run a function that only reads; it sees every write that returned before.

        Args:
            work: The function.
            allow_stale: Whether the read may use the second connection, where there is one, and so
                may miss the last deferred commits: for reads that are slow or frequent.
        """
        ...

    async def announce(self, notices: Sequence[Notice]) -> None:
        """Send notices without writing anything."""
        ...

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Receive the notices of other processes until the block ends.

        Where that is impossible, as with a file, `notices.is_live` stays false.
        """
        ...

    async def close(self) -> None:
        """Finish all requests, then close the database."""
        ...


class Schema(Struct, frozen=True):
    """The tables of one kind of store, and the migrations from its older versions."""

    name: str
    """The kind of store; a file of another kind is refused."""
    migrations: tuple[tuple[str, ...], ...]
    """The statements of each version, in order; never changed once released, only added to."""
    checksummed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tables, and their columns with `add_checksum` values; verified when a file is opened."""
    sealed: bool = False
    """Whether these columns hold `seal_blob` values: they are encrypted where there is a key."""
    postgres_migrations: tuple[tuple[str, ...] | None, ...] = ()
    """What PostgreSQL runs instead of the migration at the same position; None, or nothing at that
    position, is the migration itself, translated."""

    foreign_keys: tuple[tuple[str, str, str], ...] = ()
    """References by row number: a table, its column, and the table that it refers to."""
    derived_tables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tables that are computed from the others, and the statements that recompute them."""
    procedures: tuple[Procedure, ...] = ()
    """The procedures of its steps."""

    @property
    def application_id(self) -> int:
        """The SQLite application id, which tells a file of this kind from any other."""
        return zlib.crc32(self.name.encode()) & 0x7FFFFFFF


async def rows_of_ids(
    database: Database, statement: str, values: Sequence[Any], ids: Sequence[str]
) -> list[Any]:
    """The rows of a statement with `IN ({ids})`, in several reads if there are many.

    Args:
        database: Where to read.
        statement: The statement, with `{ids}` once, after the places of the other values.
        values: The other values.
        ids: What `{ids}` stands for.
    """
    rows: list[Any] = []
    for at in range(0, len(ids), MAX_IDS):
        some = ids[at : at + MAX_IDS]
        rows += await database.read(
            partial(_rows, statement.format(ids=", ".join("?" * len(some))), (*values, *some))
        )
    return rows


def _rows(statement: str, values: Sequence[Any], connection: Connection) -> list[Any]:
    return connection.execute(statement, values).fetchall()


def add_checksum(data: bytes) -> bytes:
    """The bytes followed by their checksum: SQLite would not notice a flipped bit in a value."""
    return data + zlib.crc32(data).to_bytes(4, "big")


def verify_checksum(blob: bytes, location: Path | str) -> bytes:
    """The bytes without their checksum; raise `DamagedStore` if it does not match."""
    data = blob[:-4]
    if zlib.crc32(data).to_bytes(4, "big") != blob[-4:]:
        raise DamagedStore(location, "a value does not match its checksum")
    return data


def seal_blob(database: Database, data: bytes) -> bytes:
    """What a run holds, as it is stored: encrypted if there is a key, with a checksum."""
    return add_checksum(database.cipher.seal(data))


def open_blob(database: Database, blob: bytes) -> bytes:
    """The value of `seal_blob`; raise `DamagedStore` or `SealedValue` if it cannot be read."""
    return database.cipher.open(verify_checksum(blob, database.name), database.name)
