"""What a device says: most of it once, but how a call ended until somebody has heard it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.edge.identity import Identity
from evoclaw.store.journal import CallState, Journal
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.topics import Kind, topic
from evoclaw.transport.wire import Report, ReportType

FIRST_RESEND, LAST_RESEND = 2.0, 30.0
"""Seconds until a result that nobody acknowledged is sent again; doubled each time."""
WINDOW = 64
"""Results sent again in one go."""


class Reports:
    """The way out. Ends of calls are journaled before they are published."""

    def __init__(self, who: Identity, link: Link, journal: Journal) -> None:
        self._who, self._link, self._journal = who, link, journal
        self._topic = topic(who.agent_id, Kind.REPORTS)
        self._sent: dict[str, float] = {}
        self._unsaved: dict[str, tuple[CallState, bytes]] = {}
        """Results the journal could not take, as on a full disk; tried again."""
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0
        """Reports that could not be published and will not be again."""

    async def say(self, kind: ReportType, payload: dict[str, JSON]) -> bool:
        """Report once; whether it could be handed to the link."""
        return await self._publish(self._encode(kind, payload))

    async def finish(self, request_id: str, state: CallState, payload: dict[str, JSON]) -> None:
        """Record how a call ended, then say so, until it is acknowledged."""
        kind = ReportType.RESULT if payload["status"] == "success" else ReportType.ERROR
        report = self._encode(kind, payload)
        if len(report) > self._link.max_payload:
            report = self._encode(ReportType.ERROR, _too_large(payload, len(report)))
        try:
            if not await self._journal.finish(request_id, state, report):
                return  # it had ended before: the first word stands and is said by `resend`
        except EvoClawError:
            # It did run, so the result is worth telling even if a crash now would make it unknown.
            self._unsaved[request_id] = state, report
        self._sent[request_id] = time.monotonic()
        await self._publish(report)
        self._wake_in(FIRST_RESEND)

    async def repeat(self, report: bytes) -> None:
        """Say again how a call ended."""
        await self._publish(report)

    async def acknowledged(self, request_ids: Iterable[str]) -> None:
        """Somebody has it: no need to keep the results any longer."""
        ids = [one for one in request_ids if one]
        for request_id in ids:
            self._sent.pop(request_id, None)
        if ids:
            await self._journal.acknowledge(ids)

    def send_again(self) -> None:
        """Do not wait any longer with what was not acknowledged: there is a new listener."""
        self._sent.clear()
        self._due.set()

    async def resend(self) -> None:
        """Keep saying what nobody acknowledged; runs as long as the device does."""
        delay = FIRST_RESEND
        while True:
            await self._due.wait()
            self._due.clear()
            await self._save()
            rows = await self._journal.unacknowledged(WINDOW)
            if not rows and not self._unsaved:
                delay = FIRST_RESEND
                continue
            now = time.monotonic()
            for row in rows:
                if self._link.is_up and now - self._sent.get(row.request_id, -delay) >= delay:
                    self._sent[row.request_id] = now
                    await self._publish(row.report or b"")
            self._wake_in(delay)
            delay = min(2 * delay, LAST_RESEND)

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    async def _save(self) -> None:
        for request_id, (state, report) in tuple(self._unsaved.items()):
            try:
                await self._journal.finish(request_id, state, report)
            except EvoClawError:
                return
            self._unsaved.pop(request_id, None)

    def _wake_in(self, seconds: float) -> None:
        if self._timer is None or self._timer.when() <= asyncio.get_running_loop().time():
            self._timer = asyncio.get_running_loop().call_later(seconds, self._due.set)

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
    kept = {key: payload.get(key) for key in ("tool", "request_id", "elapsed_ms", "exit_code")}
    return kept | {
        "status": "error",
        "result": "",
        "stderr": "",
        "error": said + " Ask for less at a time; do not repeat what changes something.",
        "error_type": str(ErrorKind.TOO_LARGE),
    }
