"""`EdgeReports`: sends a device's reports; results are repeated until they are acknowledged."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.edge.device import DeviceLimits, EdgeIdentity
from evoclaw.edge.receipts import ReceiptDraft, Receipts
from evoclaw.store.calls.journal import CallState, Journal
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import Command, Report, ReportType

SLOW_RESEND_FACTOR, SLOWEST_RESEND_FACTOR = 16.0, 300.0
"""The resend interval, as multiples of the first wait, after some tries and after many: the
orchestrator may never return."""
SLOWEST_AFTER_TRIES = 12
"""Tries after which the slowest interval is used."""
RESEND_BATCH_RESULTS = 64
"""Results sent again in one batch."""
ENCODE_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)
"""The errors of encoding a value that is not JSON, or text that is not valid Unicode."""


class _UnacknowledgedResult:
    """A result that is not acknowledged yet."""

    __slots__ = ("due", "tries")

    def __init__(self, due: float) -> None:
        self.due, self.tries = due, 0


class EdgeReports:
    """Sends reports. Outcomes are journaled before they are published."""

    def __init__(
        self, who: EdgeIdentity, link: Link, journal: Journal, limits: DeviceLimits
    ) -> None:
        self._who, self._link, self._journal, self._limits = who, link, journal, limits
        self._topic = topic(who.agent_id, TopicKind.REPORTS)
        self._unacknowledged: dict[str, _UnacknowledgedResult] = {}
        self._unsaved: dict[str, tuple[CallState, bytes | ReceiptDraft]] = {}
        """Results that could not be journaled, as on a full disk; tried again."""
        self.receipts: Receipts | None = None
        """Signs outcomes; none unless this device has a key."""
        self._wake = asyncio.Event()
        self._next = math.inf
        """When unacknowledged results are checked next."""
        self.dropped = 0
        """Reports that could not be published and will not be again."""
        self.given_up = 0
        """Unacknowledged results that were dropped for newer ones."""

    async def load(self) -> None:
        """Load the results that were not acknowledged before a restart."""
        now = time.monotonic()
        ids = await self._journal.unacknowledged_ids(self._limits.max_unacknowledged)
        self._unacknowledged = {request_id: _UnacknowledgedResult(now) for request_id in ids}

    @property
    def unacknowledged(self) -> list[str]:
        """The calls that ended and whose result was not acknowledged, the oldest first."""
        return list(self._unacknowledged)

    async def send(self, kind: ReportType, payload: dict[str, JSON]) -> bool:
        """Report once; whether the link took it."""
        try:
            report = self._encode(kind, payload)
        except ENCODE_ERRORS:
            self.dropped += 1
            return False
        return await self._publish(report)

    async def refuse(self, command: Command, payload: dict[str, JSON]) -> None:
        """Report a refusal once; signed, but not stored: any sender may cause it."""
        report = self._end(command, payload, None)
        await self._publish(report if isinstance(report, bytes) else report.outside())

    async def finish(
        self,
        command: Command,
        state: CallState,
        payload: dict[str, JSON],
        elapsed_ms: float | None = None,
    ) -> None:
        """Journal an outcome, then report it until it is acknowledged.

        `elapsed_ms` is how long it ran; None if this process never started it.
        """
        request_id = command.request_id
        report = self._end(command, payload, elapsed_ms)
        try:
            if not await self._journal.finish(request_id, state, report):
                return  # it had ended before: `resend` reports the first outcome
            encoded = report if isinstance(report, bytes) else report.report
        except EvoClawError:
            # The call ran, so its result is reported even if a crash now would make it unknown.
            # Its receipt has no number yet: an unwritten number could be reused.
            encoded = report if isinstance(report, bytes) else report.outside()
            self._unsaved[request_id] = state, report
        unacknowledged = self._unacknowledged[request_id] = _UnacknowledgedResult(
            time.monotonic() + self._limits.resend_delay_s
        )
        if unacknowledged.due < self._next:
            self._wake.set()
        await self._publish(encoded)

    async def repeat(self, request_id: str) -> bool:
        """Report an outcome again; False if it is no longer stored."""
        report = await self._report(request_id)
        if report:
            await self._publish(report)
        return bool(report)

    async def acknowledged(self, request_ids: Iterable[str]) -> None:
        """Drop results that were acknowledged."""
        ids = [request_id for request_id in request_ids if request_id]
        for request_id in ids:
            self._unacknowledged.pop(request_id, None)
        if ids:
            try:
                await self._journal.acknowledge(ids)
            except EvoClawError:
                self.dropped += 1  # reported again after a restart, and acknowledged again

    def send_again(self) -> None:
        """Send unacknowledged results now: there is a new orchestrator."""
        now = time.monotonic()
        for result in self._unacknowledged.values():
            result.due, result.tries = now, 0
        self._wake.set()

    def link_is_up(self) -> None:
        """Send what was due while there was no connection."""
        self._wake.set()

    async def resend(self) -> None:
        """Repeat unacknowledged results; runs as long as the device does."""
        while True:
            await self._wait_for_work()
            await self._save()
            await self._make_room()
            now, sent = time.monotonic(), 0
            for request_id, result in tuple(self._unacknowledged.items()):
                if result.due > now or sent == RESEND_BATCH_RESULTS or not self._link.is_up:
                    continue
                result.due = now + self._pause(result.tries)
                result.tries += 1
                sent += 1
                if request_id in self._unacknowledged and not await self._again(request_id):
                    self._unacknowledged.pop(request_id, None)

    async def _wait_for_work(self) -> None:
        self._wake.clear()
        self._next = self._when()
        try:
            timeout = None if self._next == math.inf else self._next - time.monotonic()
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return

    def _when(self) -> float:
        """When the next result is due."""
        later = time.monotonic() + self._limits.resend_delay_s
        due = min((result.due for result in self._unacknowledged.values()), default=math.inf)
        if self._unsaved:
            due = min(due, later)
        return due if self._link.is_up or due == math.inf else max(due, later)

    def _pause(self, tries: int) -> float:
        factor = (
            min(2.0**tries, SLOW_RESEND_FACTOR)
            if tries < SLOWEST_AFTER_TRIES
            else SLOWEST_RESEND_FACTOR
        )
        return self._limits.resend_delay_s * factor

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
            if request_id not in self._unacknowledged:
                await self.acknowledged([request_id])  # before it was journaled

    async def _make_room(self) -> None:
        """Limit what is kept for orchestrators that may never return."""
        too_many = len(self._unacknowledged) - self._limits.max_unacknowledged
        if too_many > 0:
            oldest = list(self._unacknowledged)[:too_many]
            self.given_up += too_many
            await self.acknowledged(oldest)

    def _end(
        self, command: Command, payload: dict[str, JSON], elapsed_ms: float | None
    ) -> bytes | ReceiptDraft:
        """The encoded outcome: always something that can be encoded."""
        try:
            report, size = self._ended(command, payload, elapsed_ms)
        except ENCODE_ERRORS as problem:
            # The tool's own text or values are invalid: it ran, and its outcome must be reported.
            report, size = self._ended(command, _not_encodable(payload, problem), elapsed_ms)
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
    message = f"The call ran, but its result of {size} bytes is too large to be sent."
    return _kept(payload) | {
        "error": message + " Ask for less at a time; do not repeat calls that change something.",
        "error_type": str(ErrorKind.TOO_LARGE),
    }


def _not_encodable(payload: dict[str, JSON], problem: Exception) -> dict[str, JSON]:
    message = f"The call ran, but its answer cannot be encoded ({type(problem).__name__})."
    return _kept(payload) | {
        "error": message + " Do not repeat calls that change something; explain to the user.",
        "error_type": str(ErrorKind.INTERNAL),
    }


def _kept(payload: dict[str, JSON]) -> dict[str, JSON]:
    """The fields of a payload that the edge sets, which can always be encoded."""
    names = ("tool", "request_id", "elapsed_ms")
    kept = {key: payload[key] for key in names if key in payload}
    return kept | {"status": "error", "result": "", "stderr": "", "exit_code": None}
