"""`RunningCall`: a call on this device that has not ended, and its idle timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import JSON
from evoclaw.edge.call_slots import SlotTicket
from evoclaw.edge.plans import CallPlan
from evoclaw.transport.wire import Command, fingerprint

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
        found: dict[str, JSON] = {
            "job_id": self.request_id,
            "tool": self.plan.name if self.plan is not None else self.command.command,
            "state": "running" if self.began else "received",
            "background": self.is_job,
        }
        if self.began:
            found["elapsed_s"] = round(now - self.began, 1)
            found["idle_s"] = round(now - self.heard, 1)
        return found


@contextmanager
def idle_timeout(live: RunningCall, seconds: float | None) -> Generator[None]:
    """End a call that writes no output for so long; None: no idle timeout."""
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def look() -> None:
        nonlocal timer
        left = live.heard + seconds - loop.time()
        if left > 0:
            timer = loop.call_later(left, look)
        else:
            live.silent = True
            live.deadline.expire()

    timer = loop.call_later(seconds, look)
    try:
        yield
    finally:
        timer.cancel()
