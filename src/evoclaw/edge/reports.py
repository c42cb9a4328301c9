"""What a device says: most of it once, but how a call ended until somebody has heard it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.edge.device import Identity, Limits
from evoclaw.edge.receipts import ReceiptDraft, Receipts
from evoclaw.store.calls.journal import CallState, Journal
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.topics import Kind, topic
from evoclaw.transport.wire import Command, Report, ReportType

SLOWER, SLOWEST = 16.0, 300.0
"""How many times slower a result is sent again after some tries; and, in times the first wait,
after many: whoever asked may be gone for good."""
PATIENT = 12
"""Tries after which it gets slowest."""
WINDOW = 64
"""Results sent again in one go."""
UNSAYABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What a value that is no JSON, or a text that is no text, raises when it is written."""


class _Untold:
    """A result that nobody has acknowledged."""

    __slots__ = ("due", "tries")

    def __init__(self, due: float) -> None:
        self.due, self.tries = due, 0


class Reports:
    """The way out. Ends of calls are journaled before they are published."""

    def __init__(self, who: Identity, link: Link, journal: Journal, limits: Limits) -> None:
        self._who, self._link, self._journal, self._limits = who, link, journal, limits
        self._topic = topic(who.agent_id, Kind.REPORTS)
        self._untold: dict[str, _Untold] = {}
        self._unsaved: dict[str, tuple[CallState, bytes | ReceiptDraft]] = {}
        """Results the journal could not take, as on a full disk; tried again."""
        self.receipts: Receipts | None = None
        """Who signs what is said of how calls ended; nobody unless this device has a key."""
        self._wake = asyncio.Event()
        self._next = math.inf
        """When what is untold is looked through next."""
        self.dropped = 0
        """Reports that could not be published and will not be again."""
        self.given_up = 0
        """Results that nobody acknowledged and that made room for newer ones."""

    async def load(self) -> None:
        """Take up what was not acknowledged before a restart."""
        now = time.monotonic()
        ids = await self._journal.untold(self._limits.untold_most)
        self._untold = {request_id: _Untold(now) for request_id in ids}

    @property
    def untold(self) -> list[str]:
        """The calls that ended and whose result was not acknowledged, the oldest first."""
        return list(self._untold)

    async def say(self, kind: ReportType, payload: dict[str, JSON]) -> bool:
        """Report once; whether it could be handed to the link."""
        try:
            report = self._encode(kind, payload)
        except UNSAYABLE:
            self.dropped += 1
            return False
        return await self._publish(report)

    async def refuse(self, command: Command, payload: dict[str, JSON]) -> None:
        """Say once that a call is not run; signed, but nowhere kept: strangers may ask for it."""
        report = self._end(command, payload, None)
        await self._publish(report if isinstance(report, bytes) else report.outside())

    async def finish(
        self,
        command: Command,
        state: CallState,
        payload: dict[str, JSON],
        elapsed_ms: float | None = None,
    ) -> None:
        """Record how a call ended, then say so, until it is acknowledged.

        `elapsed_ms` is how long it ran; None if this process never began it.
        """
        request_id = command.request_id
        report = self._end(command, payload, elapsed_ms)
        try:
            if not await self._journal.finish(request_id, state, report):
                return  # it had ended before: the first word stands and is said by `resend`
            said = report if isinstance(report, bytes) else report.report
        except EvoClawError:
            # It did run, so the result is worth telling even if a crash now would make it unknown.
            # Its receipt has no place yet: what is not written could be given away again.
            said = report if isinstance(report, bytes) else report.outside()
            self._unsaved[request_id] = state, report
        one = self._untold[request_id] = _Untold(time.monotonic() + self._limits.resend)
        if one.due < self._next:
            self._wake.set()
        await self._publish(said)

    async def repeat(self, request_id: str) -> bool:
        """Say again how a call ended; False if that is not kept any more."""
        report = await self._report(request_id)
        if report:
            await self._publish(report)
        return bool(report)

    async def acknowledged(self, request_ids: Iterable[str]) -> None:
        """Somebody has it: no need to keep the results any longer."""
        ids = [request_id for request_id in request_ids if request_id]
        for request_id in ids:
            self._untold.pop(request_id, None)
        if ids:
            try:
                await self._journal.acknowledge(ids)
            except EvoClawError:
                self.dropped += 1  # told once more after a restart, and acknowledged again

    def send_again(self) -> None:
        """Do not wait any longer with what was not acknowledged: there is a new listener."""
        now = time.monotonic()
        for result in self._untold.values():
            result.due, result.tries = now, 0
        self._wake.set()

    def link_is_up(self) -> None:
        """Say what was due while there was no connection."""
        self._wake.set()

    async def resend(self) -> None:
        """Keep saying what nobody acknowledged; runs as long as the device does."""
        while True:
            await self._wait_for_work()
            await self._save()
            await self._make_room()
            now, sent = time.monotonic(), 0
            for request_id, untold in tuple(self._untold.items()):
                if untold.due > now or sent == WINDOW or not self._link.is_up:
                    continue
                untold.due = now + self._pause(untold.tries)
                untold.tries += 1
                sent += 1
                if request_id in self._untold and not await self._again(request_id):
                    self._untold.pop(request_id, None)

    async def _wait_for_work(self) -> None:
        self._wake.clear()
        self._next = self._when()
        try:
            left = None if self._next == math.inf else self._next - time.monotonic()
            async with asyncio.timeout(left):
                await self._wake.wait()
        except TimeoutError:
            return

    def _when(self) -> float:
        """When there is something to do."""
        later = time.monotonic() + self._limits.resend
        due = min((result.due for result in self._untold.values()), default=math.inf)
        if self._unsaved:
            due = min(due, later)
        return due if self._link.is_up or due == math.inf else max(due, later)

    def _pause(self, tries: int) -> float:
        factor = min(2.0**tries, SLOWER) if tries < PATIENT else SLOWEST
        return self._limits.resend * factor

    async def _again(self, request_id: str) -> bool:
        try:
            return await self.repeat(request_id)
        except EvoClawError:
            return True  # the journal could not be read; next time

    async def _report(self, request_id: str) -> bytes | None:
        if request_id in self._unsaved:
            report = self._unsaved[request_id][1]
            return report if isinstance(report, bytes) else report.report
        row = await self._journal.get(request_id)
        return None if row is None else row.report

    async def _save(self) -> None:
        for request_id, (state, report) in tuple(self._unsaved.items()):
            try:
                await self._journal.finish(request_id, state, report)
            except EvoClawError:
                return
            self._unsaved.pop(request_id, None)
            if request_id not in self._untold:
                await self.acknowledged([request_id])  # it was, before it could be written down

    async def _make_room(self) -> None:
        """Bound what is kept for those who may never ask again."""
        too_many = len(self._untold) - self._limits.untold_most
        if too_many > 0:
            oldest = list(self._untold)[:too_many]
            self.given_up += too_many
            await self.acknowledged(oldest)

    def _end(
        self, command: Command, payload: dict[str, JSON], elapsed_ms: float | None
    ) -> bytes | ReceiptDraft:
        """What is said of how a call ended: always something that can be said."""
        try:
            report, size = self._ended(command, payload, elapsed_ms)
        except UNSAYABLE as problem:
            # A tool's own words or values: what it did is done, and must be told somehow.
            report, size = self._ended(command, _unsayable(payload, problem), elapsed_ms)
        if size > self._link.max_payload:
            report, _ = self._ended(command, _too_large(payload, size), elapsed_ms)
        return report

    def _ended(
        self, command: Command, payload: dict[str, JSON], elapsed_ms: float | None
    ) -> tuple[bytes | ReceiptDraft, int]:
        if self.receipts is None:
            kind = ReportType.RESULT if payload["status"] == "success" else ReportType.ERROR
            report = self._encode(kind, payload)
            return report, len(report)
        draft = self.receipts.draft(command, payload, elapsed_ms)
        return draft, draft.size

    def _encode(self, kind: ReportType, payload: dict[str, JSON]) -> bytes:
        who = self._who
        return msgspec.json.encode(
            Report(who.agent_id, who.agent_type, kind, payload, round(time.time(), 3))
        )

    async def _publish(self, report: bytes) -> bool:
        try:
            await self._link.publish(self._topic, report)
        except (LinkDown, TooLarge):
            self.dropped += 1
            return False
        return True


def _too_large(payload: dict[str, JSON], size: int) -> dict[str, JSON]:
    said = f"The call ran, but its result of {size} bytes is too large to be sent."
    return _kept(payload) | {
        "error": said + " Ask for less at a time; do not repeat what changes something.",
        "error_type": str(ErrorKind.TOO_LARGE),
    }


def _unsayable(payload: dict[str, JSON], problem: Exception) -> dict[str, JSON]:
    said = f"The call ran, but its answer cannot be told ({type(problem).__name__})."
    return _kept(payload) | {
        "error": said + " Do not repeat what changes something; explain to the user.",
        "error_type": str(ErrorKind.INTERNAL),
    }


def _kept(payload: dict[str, JSON]) -> dict[str, JSON]:
    """What of a payload is ours, and so can be told whatever its result is."""
    names = ("tool", "request_id", "elapsed_ms")
    kept = {key: payload[key] for key in names if key in payload}
    return kept | {"status": "error", "result": "", "stderr": "", "exit_code": None}
