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

from evoclaw.core.events import Record, RunResumed, StopReason

MAX_PAYLOAD_BYTES = 7_500
"""Bytes of the payload of one NOTIFY; PostgreSQL takes a few more."""
WATCH_TTL_S = 30.0
"""Seconds for which a watcher receives the progress of a run, unless it renews the request."""
LISTENER_TTL_S = 15.0
"""Seconds for which a process counts as listening after it was last heard."""
MAX_WATCHED_RUNS = 50_000
"""Runs that are known to be watched by other processes; watchers of more runs must poll."""


class NoticeKind(StrEnum):
    """What changed about a run."""

    RECORDS_STORED = "kept"
    """More records are stored, maybe the last; sent only to processes that watch the run."""
    STATE_CHANGED = "stands"
    """The run waits, or was resumed."""
    CANCELLED = "cancelled"
    """Its cancellation was requested."""
    MESSAGE_SENT = "said"
    """A message was sent to the run."""
    ANSWERED = "answered"
    """A question or an approval request of the run was answered."""
    WATCHED = "watched"
    """A process that does not drive the run watches it, and wants its progress."""
    LISTENER_JOINED = "newcomer"
    """Not about a run: a process starts to listen, and does not know yet which runs are watched."""
    LISTENING = "listening"
    """Not about a run: a process still listens; sent every few seconds."""


class Notice(Struct, frozen=True, array_like=True):
    """A change of one run."""

    kind: str
    """A `NoticeKind`; newer versions may send others."""
    tenant: str
    run_id: str


Listener: TypeAlias = Callable[[Notice | None], None]
"""Called with one notice; with None if some may have been missed and the listener must poll."""


class _NoticePayload(Struct, frozen=True, array_like=True):
    sender: str
    notices: tuple[Notice, ...]


class Notices:
    """Sends and receives the notices of one database, for one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without listeners and watchers."""
        self.sender = secrets.token_hex(8)
        """The id of this process in its payloads, by which it recognises its own."""
        self.is_live = False
        """Whether notices of other processes arrive; if not, listeners must poll."""
        self._clock = clock
        self._listeners: list[tuple[Listener, bool]] = []
        self._watchers: dict[tuple[str, str], dict[str, float]] = {}
        """When the watch of a run expires, by run and process."""
        self._next_expiry_at = 0.0
        self._others_until = float("inf")
        """Until when some other process may listen; without end while that is unknown."""
        self._drivers: dict[tuple[str, str], Callable[[], None]] = {}

    @contextmanager
    def subscribe(self, listener: Listener, *, own: bool = True) -> Generator[None]:
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
    def register_driver(
        self, tenant: str, run_id: str, on_watched: Callable[[], None]
    ) -> Generator[None]:
        """Drive a run until the block ends; the callback is called for a new watcher."""
        key = tenant, run_id
        self._drivers[key] = on_watched
        try:
            yield
        finally:
            if self._drivers.get(key) is on_watched:
                del self._drivers[key]

    def deliver(self, notices: Iterable[Notice], *, own: bool = True) -> None:
        """Call the listeners of this process.

        Args:
            notices: The notices.
            own: Whether this process sent them.
        """
        for notice in notices:
            for listener, all_ in tuple(self._listeners):
                if all_ or not own:
                    listener(notice)

    def report_missed(self, *, is_live: bool) -> None:
        """Tell all listeners that notices may have been missed.

        Args:
            is_live: Whether notices of other processes arrive from now on.
        """
        self.is_live = is_live
        # Those who listen already are heard within this time.
        self._others_until = self._clock() + LISTENER_TTL_S if is_live else float("inf")
        for listener, _ in tuple(self._listeners):
            listener(None)

    def receive(self, payload: str) -> None:
        """Deliver what another process sent; the notices of this process were delivered already."""
        try:
            found = msgspec.json.decode(payload, type=_NoticePayload)
        except msgspec.DecodeError:
            return  # any user of the database can send any payload
        if found.sender == self.sender:
            return
        self._others_until = max(self._others_until, self._clock() + LISTENER_TTL_S)
        for notice in found.notices:
            if notice.kind == NoticeKind.WATCHED:
                self._add_watcher(notice, found.sender)
            elif notice.kind != NoticeKind.LISTENING:
                self.deliver((notice,), own=False)

    def outgoing(self, notices: Sequence[Notice]) -> Sequence[Notice]:
        """Those notices that other processes get: progress only if the run is watched.

        None while no other process listens.
        """
        if self._clock() > self._others_until:
            return ()
        return [
            notice
            for notice in notices
            if notice.kind != NoticeKind.RECORDS_STORED
            or self.is_watched(notice.tenant, notice.run_id)
        ]

    def is_watched(self, tenant: str, run_id: str) -> bool:
        """Whether another process watches a run."""
        if (watchers := self._watchers.get((tenant, run_id))) is None:
            return False
        if max(watchers.values()) > self._clock():
            return True
        del self._watchers[tenant, run_id]
        return False

    def _add_watcher(self, notice: Notice, sender: str) -> None:
        """Note a watcher; a new one is reported to the driver of the run."""
        now, key = self._clock(), (notice.tenant, notice.run_id)
        if now >= self._next_expiry_at:
            self._drop_expired(now)
        if key not in self._watchers and len(self._watchers) >= MAX_WATCHED_RUNS:
            return
        watchers = self._watchers.setdefault(key, {})
        fresh = watchers.get(sender, 0.0) <= now
        watchers[sender] = now + WATCH_TTL_S
        if fresh and (watched := self._drivers.get(key)) is not None:
            watched()

    def _drop_expired(self, now: float) -> None:
        self._next_expiry_at = now + WATCH_TTL_S
        expired = [key for key, watchers in self._watchers.items() if max(watchers.values()) <= now]
        for key in expired:
            del self._watchers[key]


def encode_payloads(sender: str, notices: Iterable[Notice]) -> list[str]:
    """Notices as payloads: each notice once, as many in one payload as fit."""
    payloads: list[str] = []
    batch: list[Notice] = []
    size = 0
    for notice in dict.fromkeys(notices):
        length = len(msgspec.json.encode(notice)) + 1
        if length > MAX_PAYLOAD_BYTES:
            continue  # the id of the run is too long; listeners find the change by polling
        if size + length > MAX_PAYLOAD_BYTES:
            payloads.append(_encode_payload(sender, batch))
            batch, size = [], 0
        batch.append(notice)
        size += length
    return [*payloads, _encode_payload(sender, batch)] if batch else payloads


def _encode_payload(sender: str, notices: list[Notice]) -> str:
    return msgspec.json.encode(_NoticePayload(sender, tuple(notices))).decode()


def progress_notice(
    tenant: str, run_id: str, records: Sequence[Record], stop: StopReason | None
) -> Notice:
    """The notice for stored records.

    Who watches a run that waits has not asked for its progress, so all are told that it waits, and
    that it was resumed or closed. Of any other progress only those are told who asked for it.
    """
    was_waiting = bool(records) and isinstance(records[0].event, RunResumed)
    kind = NoticeKind.RECORDS_STORED
    if was_waiting or stop is StopReason.WAITING:
        kind = NoticeKind.STATE_CHANGED
    return Notice(kind, tenant, run_id)


def run_id_of(call_id: str) -> str:
    """The run of a call, by the id of the call or of one of its attempts."""
    return call_id.partition(".")[0]
