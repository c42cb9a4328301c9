"""Notices that something about a run changed, sent with the commit to all processes of a store.

A notice names the run, never the content. A process that misses a notice finds the change by
polling, a little later: notices only make changes visible sooner.
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
"""Bytes of the payload of one NOTIFY; PostgreSQL takes a few more."""
WANTED = 30.0
"""Seconds for which a watcher receives the progress of a run, unless it renews the request."""
MOST = 50_000
"""Runs that are known to be watched by other processes; watchers of more runs must poll."""


class Kind(StrEnum):
    """What changed about a run."""

    KEPT = "kept"
    """More records are stored; sent only to processes that watch the run."""
    STANDS = "stands"
    """The run was started or resumed, waits, or has ended."""
    CANCELLED = "cancelled"
    """Its cancellation was requested."""
    SAID = "said"
    """A message was sent to the run."""
    ANSWERED = "answered"
    """A question or an approval request of the run was answered."""
    WATCHED = "watched"
    """A process that does not drive the run watches it, and wants its progress."""
    NEWCOMER = "newcomer"
    """Of no run: a process listens from now on, and does not know yet who watches what."""


class Notice(Struct, frozen=True, array_like=True):
    """A change of one run."""

    kind: str
    """A `NoticeKind`; newer versions may send others."""
    tenant: str
    run_id: str


Listener: TypeAlias = Callable[[Notice | None], None]
"""Called with one notice; with None if some may have been missed and the listener must poll."""


class _Letter(Struct, frozen=True, array_like=True):
    sender: str
    notices: tuple[Notice, ...]


class Notices:
    """Sends and receives the notices of one database, for one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without listeners and watchers."""
        self.sender = secrets.token_hex(8)
        """The id of this process in its payloads, by which it recognises its own."""
        self.reach = False
        """Whether notices of other processes arrive; if not, listeners must poll."""
        self._clock = clock
        self._listeners: list[tuple[Listener, bool]] = []
        self._wanted: dict[tuple[str, str], dict[str, float]] = {}
        """When the watch of a run expires, by run and process."""
        self._forget_at = 0.0
        self._driven: dict[tuple[str, str], Callable[[], None]] = {}

    @contextmanager
    def heard_by(self, listener: Listener, *, own: bool = True) -> Generator[None]:
        """Call a listener for every notice until the block ends; it must be quick and never raise.

        Args:
            listener: The listener.
            own: Whether also for the notices of this process.
        """
        entry = listener, own
        self._listeners.append(entry)
        try:
            yield
        finally:
            self._listeners.remove(entry)

    @contextmanager
    def driven(self, tenant: str, run_id: str, watched: Callable[[], None]) -> Generator[None]:
        """Drive a run until the block ends; the callback is called for a new watcher."""
        key = tenant, run_id
        self._driven[key] = watched
        try:
            yield
        finally:
            if self._driven.get(key) is watched:
                del self._driven[key]

    def tell(self, notices: Iterable[Notice], *, own: bool = True) -> None:
        """Call the listeners of this process.

        Args:
            notices: The notices.
            own: Whether this process sent them.
        """
        for notice in notices:
            for listener, all_ in tuple(self._listeners):
                if all_ or not own:
                    listener(notice)

    def miss(self, *, reach: bool) -> None:
        """Tell all listeners that notices may have been missed.

        Args:
            is_live: Whether notices of other processes arrive from now on.
        """
        self.reach = reach
        for listener, _ in tuple(self._listeners):
            listener(None)

    def receive(self, letter: str) -> None:
        """Deliver what another process sent; the notices of this process were delivered already."""
        try:
            found = msgspec.json.decode(letter, type=_Letter)
        except msgspec.DecodeError:
            return  # any user of the database can send any payload
        if found.sender == self.sender:
            return
        for notice in found.notices:
            if notice.kind == Kind.WATCHED:
                self._want(notice, found.sender)
            else:
                self.tell((notice,), own=False)

    def sent(self, notices: Sequence[Notice]) -> Sequence[Notice]:
        """Those notices that other processes get: progress only if the run is watched."""
        return [
            notice
            for notice in notices
            if notice.kind != Kind.KEPT or self.is_wanted(notice.tenant, notice.run_id)
        ]

    def is_wanted(self, tenant: str, run_id: str) -> bool:
        """Whether another process watches a run."""
        if (watchers := self._wanted.get((tenant, run_id))) is None:
            return False
        if max(watchers.values()) > self._clock():
            return True
        del self._wanted[tenant, run_id]
        return False

    def _want(self, notice: Notice, sender: str) -> None:
        """Note a watcher; a new one is reported to the driver of the run."""
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
        expired = [key for key, watchers in self._wanted.items() if max(watchers.values()) <= now]
        for key in expired:
            del self._wanted[key]


def letters_of(sender: str, notices: Iterable[Notice]) -> list[str]:
    """Notices as payloads: each notice once, as many in one payload as fit."""
    payloads: list[str] = []
    batch: list[Notice] = []
    size = 0
    for notice in dict.fromkeys(notices):
        length = len(msgspec.json.encode(notice)) + 1
        if length > LARGEST:
            continue  # the id of the run is too long; listeners find the change by polling
        if size + length > LARGEST:
            payloads.append(_letter(sender, batch))
            batch, size = [], 0
        batch.append(notice)
        size += length
    return [*payloads, _letter(sender, batch)] if batch else payloads


def _letter(sender: str, notices: list[Notice]) -> str:
    return msgspec.json.encode(_Letter(sender, tuple(notices))).decode()


def progress(
    tenant: str, run_id: str, records: Sequence[Record], stop: StopReason | None
) -> Notice:
    """The notice for stored records."""
    begins = bool(records) and isinstance(records[0].event, RunStarted | RunResumed)
    return Notice(Kind.STANDS if begins or stop is not None else Kind.KEPT, tenant, run_id)


def run_of(place: str) -> str:
    """The run of a call, by the id of the call or of one of its attempts."""
    return place.partition(".")[0]
