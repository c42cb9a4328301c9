"""`RunningCall`: a call on this device that has not ended, its idle timeout, and its slot."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import JSON
from evoclaw.edge.plans import CallPlan
from evoclaw.transport.wire import Command, fingerprint


class SlotTicket:
    """A call's position in the queue for a slot."""

    __slots__ = ("_slots", "_turn", "has_slot")

    def __init__(self, slots: CallSlots) -> None:
        self._slots = slots
        self._turn: asyncio.Event | None = None
        self.has_slot = False
        """Whether the call has a slot, or had one."""

    async def wait(self) -> None:
        """Wait for a slot."""
        if not self.has_slot:
            self._turn = asyncio.Event()
            await self._turn.wait()

    def grant(self) -> None:
        """Give it a slot."""
        self.has_slot = True
        if self._turn is not None:
            self._turn.set()

    def leave(self) -> None:
        """Release the slot, or leave the queue; may be called twice."""
        self._slots.leave(self)


class CallSlots:
    """Assigns slots in the order of the tickets."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._taken: set[SlotTicket] = set()
        self._waiting: dict[SlotTicket, None] = {}

    def enqueue(self) -> SlotTicket:
        """A ticket for a new call."""
        ticket = SlotTicket(self)
        self._waiting[ticket] = None
        self.changed()
        return ticket

    def leave(self, ticket: SlotTicket) -> None:
        """Remove a ticket."""
        self._waiting.pop(ticket, None)
        self._taken.discard(ticket)
        self.changed()

    def changed(self) -> None:
        """Assign free slots: the limit may have grown."""
        while self._waiting and len(self._taken) < self._most():
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            self._taken.add(ticket)
            ticket.grant()


MAX_SHOWN_OUTPUT_CHARS = 2_000
"""The tail of a job's output that is shown while it runs."""


class RunningCall:
    """The state of a call until it ends."""

    __slots__ = (
        "began",
        "came",
        "command",
        "committed",
        "deadline",
        "digest",
        "heard",
        "kept",
        "message",
        "plan",
        "report_at",
        "said",
        "silent",
        "task",
        "ticket",
    )

    def __init__(
        self, command: Command, ticket: SlotTicket, message: bytes = b"", *, kept: bool = False
    ) -> None:
        self.command, self.ticket, self.message = command, ticket, message
        self.digest = fingerprint(command)
        self.deadline = Deadline()
        self.kept = kept
        """It is in the journal: its outcome will be reported."""
        self.committed = False
        """It is being journaled as started, so it runs until it has an outcome."""
        self.plan: CallPlan | None = None
        self.came = time.monotonic()
        self.began = self.heard = 0.0
        """When it started, and when it last wrote output."""
        self.report_at = math.inf
        """When it is reported as accepted, by the loop's clock; it may have ended before."""
        self.said = ""
        self.silent = False
        """It was ended because it wrote no output for too long."""
        self.task: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> str:
        """Its id."""
        return self.command.request_id

    @property
    def is_job(self) -> bool:
        """Whether it runs in the background."""
        return self.plan is not None and self.plan.background

    def start(self, plan: CallPlan) -> None:
        """Note that it runs."""
        self.plan = plan
        self.began = self.heard = time.monotonic()

    def on_progress(self, text: str) -> None:
        """Note that it wrote output."""
        self.heard = time.monotonic()
        self.said = (self.said + text)[-MAX_SHOWN_OUTPUT_CHARS:]

    def describe(self) -> dict[str, JSON]:
        """Its status, as JSON."""
        now = time.monotonic()
        status: dict[str, JSON] = {
            "job_id": self.request_id,
            "tool": self.plan.name if self.plan is not None else self.command.command,
            "state": "running" if self.began else "received",
            "background": self.is_job,
        }
        if self.began:
            status["elapsed_s"] = round(now - self.began, 1)
            status["idle_s"] = round(now - self.heard, 1)
        return status


@contextmanager
def idle_timeout(live: RunningCall, seconds: float) -> Generator[None]:
    """End a call that writes no output for so long."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        nonlocal timer
        remaining = live.heard + seconds - loop.time()
        if remaining > 0:
            timer = loop.call_later(remaining, look)
        else:
            live.silent = True
            live.deadline.expire()

    timer = loop.call_later(seconds, look)
    try:
        yield
    finally:
        timer.cancel()
