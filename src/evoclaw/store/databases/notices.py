"""Notices: who should look at a run, told with the commit, here and in all who share the store.

A notice says where to look, never what is there. Whoever misses one finds the same by looking, a
little later: nothing depends on notices but how soon something is seen.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.events import Record, RunResumed, RunStarted, StopReason

LARGEST = 7_500
"""Bytes of a letter; PostgreSQL takes a few more."""
WANTED = 30.0
"""Seconds for which somebody who watches a run is told of it, unless he asks again."""
MOST = 50_000
"""Runs that are known to be watched elsewhere; others are found by looking."""


class Kind(StrEnum):
    """Why to look at a run."""

    KEPT = "kept"
    """More of what happened in it is stored; only those are told who said that they watch it."""
    STANDS = "stands"
    """It was begun or gone on with, waits, or has ended."""
    CANCELLED = "cancelled"
    """It is to be cancelled."""
    SAID = "said"
    """Something was said to it."""
    ANSWERED = "answered"
    """Something that it asked, or asked leave for, was answered."""
    WATCHED = "watched"
    """Somebody watches it who does not drive it, and wants to be told."""
    NEWCOMER = "newcomer"
    """Of no run: somebody hears from now on, and does not know who watches what."""


class Notice(Struct, frozen=True, array_like=True):
    """One run that is worth a look."""

    kind: str
    """A `Kind`; others may come from newer versions."""
    tenant: str
    run_id: str


Listener: TypeAlias = Callable[[Notice | None], None]
"""Is told of one notice; None if some may have been missed, and everything is to be looked at."""


class _Letter(Struct, frozen=True, array_like=True):
    sender: str
    notices: tuple[Notice, ...]


class Notices:
    """The notices of one database, as a process sends and hears them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know of nobody yet."""
        self.sender = secrets.token_hex(8)
        """By which others tell our letters from theirs, and we know our own."""
        self.reach = False
        """What others write is heard as soon as it is written; else it is to be looked for."""
        self._clock = clock
        self._listeners: list[tuple[Listener, bool]] = []
        self._wanted: dict[tuple[str, str], dict[str, float]] = {}
        """Until when somebody is to be told of a run, by the run and who that is."""
        self._forget_at = 0.0
        self._driven: dict[tuple[str, str], Callable[[], None]] = {}

    @contextmanager
    def heard_by(self, listener: Listener, *, own: bool = True) -> Generator[None]:
        """Have somebody told while the block lasts; he must be quick, and never fail.

        Args:
            listener: Who is told.
            own: Whether also of what this process wrote.
        """
        entry = listener, own
        self._listeners.append(entry)
        try:
            yield
        finally:
            self._listeners.remove(entry)

    @contextmanager
    def driven(self, tenant: str, run_id: str, watched: Callable[[], None]) -> Generator[None]:
        """Drive a run while the block lasts; `watched` is called when somebody asks to be told."""
        key = tenant, run_id
        self._driven[key] = watched
        try:
            yield
        finally:
            if self._driven.get(key) is watched:
                del self._driven[key]

    def tell(self, notices: Iterable[Notice], *, own: bool = True) -> None:
        """Tell those who listen in this process.

        Args:
            notices: What.
            own: Whether this process wrote it.
        """
        for notice in notices:
            for listener, all_ in tuple(self._listeners):
                if all_ or not own:
                    listener(notice)

    def miss(self, *, reach: bool) -> None:
        """Something may have been written of which nobody was told; everybody looks.

        Args:
            reach: Whether what others write is heard from now on.
        """
        self.reach = reach
        for listener, _ in tuple(self._listeners):
            listener(None)

    def receive(self, letter: str) -> None:
        """Take in what somebody else sent; our own was told already."""
        try:
            found = msgspec.json.decode(letter, type=_Letter)
        except msgspec.DecodeError:
            return  # whoever may use the database may send anything
        if found.sender == self.sender:
            return
        for notice in found.notices:
            if notice.kind == Kind.WATCHED:
                self._want(notice, found.sender)
            else:
                self.tell((notice,), own=False)

    def sent(self, notices: Sequence[Notice]) -> Sequence[Notice]:
        """Those of some notices that others are told: of mere progress only who watches is."""
        return [
            one
            for one in notices
            if one.kind != Kind.KEPT or self.is_wanted(one.tenant, one.run_id)
        ]

    def is_wanted(self, tenant: str, run_id: str) -> bool:
        """Whether somebody elsewhere watches a run."""
        if (watchers := self._wanted.get((tenant, run_id))) is None:
            return False
        if max(watchers.values()) > self._clock():
            return True
        del self._wanted[tenant, run_id]
        return False

    def _want(self, notice: Notice, sender: str) -> None:
        """Know that somebody watches; whoever drives the run is told, if that is news."""
        now, key = self._clock(), (notice.tenant, notice.run_id)
        if now >= self._forget_at:
            self._forget(now)
        if key not in self._wanted and len(self._wanted) >= MOST:
            return
        watchers = self._wanted.setdefault(key, {})
        fresh = watchers.get(sender, 0.0) <= now
        watchers[sender] = now + WANTED
        if fresh and (watched := self._driven.get(key)) is not None:
            watched()

    def _forget(self, now: float) -> None:
        self._forget_at = now + WANTED
        ended = [key for key, watchers in self._wanted.items() if max(watchers.values()) <= now]
        for key in ended:
            del self._wanted[key]


def letters_of(sender: str, notices: Iterable[Notice]) -> list[str]:
    """Notices as they are sent: each once, as many in a letter as fit."""
    letters: list[str] = []
    held: list[Notice] = []
    size = 0
    for notice in dict.fromkeys(notices):
        length = len(msgspec.json.encode(notice)) + 1
        if length > LARGEST:
            continue  # of a run with such an id nobody is told; it is found by looking
        if size + length > LARGEST:
            letters.append(_letter(sender, held))
            held, size = [], 0
        held.append(notice)
        size += length
    return [*letters, _letter(sender, held)] if held else letters


def _letter(sender: str, notices: list[Notice]) -> str:
    return msgspec.json.encode(_Letter(sender, tuple(notices))).decode()


def progress(
    tenant: str, run_id: str, records: Sequence[Record], stop: StopReason | None
) -> Notice:
    """What is told of records that are stored."""
    begins = bool(records) and isinstance(records[0].event, RunStarted | RunResumed)
    return Notice(Kind.STANDS if begins or stop is not None else Kind.KEPT, tenant, run_id)


def run_of(place: str) -> str:
    """The run that a call belongs to, by the id of the call or of one attempt at it."""
    return place.partition(".")[0]
