"""What a store is kept in: something that runs work in transactions, on whatever disk.

StoreError          something could not be kept or read; it was not done, and may be tried again
├── StoreFull       there is no room on the disk; works again when there is
├── Conflict        something of that id is there already
├── DamagedStore    what is there is not what was written; it is never begun anew without a word
└── Undecided       the database went away at the worst moment: it was done, or it was not
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from evoclaw.core.errors import EvoClawError, Standstill
from evoclaw.store.databases.notices import Notice, Notices

T = TypeVar("T")

Dialect = Literal["sqlite", "postgres"]
EVERY = (1 << 63) - 1
"""A limit that is none: not every database takes a negative one for that."""


class StoreError(EvoClawError):
    """Something could not be kept or read."""


class StoreAway(StoreError, Standstill):
    """The server cannot be reached just now, or does not get to it; what was asked is not done."""


class StoreFull(StoreError):
    """There is no room on the disk."""

    def __init__(self, place: Path | str) -> None:
        super().__init__(f"no room on the disk of {place}; nothing was stored, free some and go on")
        self.place = place


class Conflict(StoreError):
    """Something that there may be once is there already."""


class DamagedStore(StoreError):
    """What is there is not what was written."""

    def __init__(self, place: Path | str, problem: str) -> None:
        super().__init__(
            f"{place} is damaged ({problem}); it was left as it is: restore it, "
            "or have it set aside and begin with an empty history"
        )
        self.place, self.problem = place, problem


class Undecided(StoreError, Standstill):
    """The database went away while it was told to commit, and did not come back in time."""

    def __init__(self, place: Path | str) -> None:
        super().__init__(
            f"{place} went away during a commit: what was asked for is stored, or is not; "
            "look before asking again"
        )
        self.place = place


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Runs statements; placeholders are `?` or `?1`, whichever database it is."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Rows:
        """Run one statement for each of the rows."""
        ...


Work = Callable[[Connection], T]
"""Runs inside a transaction: uses the connection, and nothing else, as it may be undone and run
again. It never commits, and is quick: nothing else goes on meanwhile."""


class Database(Protocol):
    """Where everything of a store is kept."""

    @property
    def name(self) -> str:
        """Which one it is, for messages; no secret is in it."""
        ...

    @property
    def dialect(self) -> Dialect:
        """For what cannot be said in one way to all databases, as a search for words."""
        ...

    @property
    def commits(self) -> int:
        """How many transactions were committed."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds in which something was done, so far; who gains one a second can do no more."""
        ...

    @property
    def notices(self) -> Notices:
        """What this process hears of what was written."""
        ...

    async def write(self, work: Work[T], *, wait: bool = True, tells: Sequence[Notice] = ()) -> T:
        """Run something in a transaction; when this returns, it is committed.

        A caller who is cancelled does not know whether it was done.

        Args:
            work: What to do.
            wait: Whether to wait for the commit, of this and of all that was written before it:
                the barrier before anything that the world sees. Without, its result is returned
                as soon as it is known; it is committed together with what is written next, or
                a moment later. What came first is never kept without what came before.
            tells: Who should look: told here when this returns, and with the commit to all who
                share the database.
        """
        ...

    async def read(self, work: Work[T], *, aside: bool = False) -> T:
        """Run something that only reads; it sees every write that returned before.

        Args:
            work: What to do.
            aside: Whether it may go beside what is written, where that can be. Of the writes that
                nobody waited for it may miss the last: for what takes long, or is asked often.
        """
        ...

    async def announce(self, tells: Sequence[Notice]) -> None:
        """Tell those who should look, without writing anything."""
        ...

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Hear what others write, as they write it, until the block ends.

        Where that cannot be, as with a file, `notices.reach` stays false.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked for, and close it."""
        ...


class Schema(Struct, frozen=True):
    """What a kind of store holds, and the way there from its older forms."""

    name: str
    """Of the kind; a file of another kind is refused."""
    steps: tuple[tuple[str, ...], ...]
    """The statements of each version, in order; never changed once released, only added to."""
    sealed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tables, and their columns that hold `sealed` bytes; looked at when a file is opened."""
    postgres: tuple[tuple[str, ...] | None, ...] = ()
    """What PostgreSQL does instead of the step in the same place; None, or nothing in that place,
    is the step itself, translated."""

    refers: tuple[tuple[str, str, str], ...] = ()
    """Tables and their columns that hold the number of a row in another table: that one's name."""
    derived: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tables that are made from the others, and the statements that make them anew."""

    @property
    def mark(self) -> int:
        """Tells a file of this kind from any other."""
        return zlib.crc32(self.name.encode()) & 0x7FFFFFFF


def sealed(data: bytes) -> bytes:
    """Bytes and their checksum; SQLite itself would not notice a flipped bit in a value."""
    return data + zlib.crc32(data).to_bytes(4, "big")


def unsealed(blob: bytes, place: Path | str) -> bytes:
    """The bytes that were sealed."""
    data = blob[:-4]
    if zlib.crc32(data).to_bytes(4, "big") != blob[-4:]:
        raise DamagedStore(place, "a value does not match its checksum")
    return data
