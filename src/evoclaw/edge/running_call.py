"""`RunningCall`: a call on this device that has not ended, and its idle timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import JSON
from evoclaw.edge.call_slots import Ticket
from evoclaw.edge.plans import Plan
from evoclaw.transport.wire import Command, fingerprint

TAIL = 2_000
"""Characters of a job's output that are shown while it runs."""


class Live:
    """What is known of it while it lasts."""

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
        self, command: Command, ticket: Ticket, message: bytes = b"", *, kept: bool = False
    ) -> None:
        self.command, self.ticket, self.message = command, ticket, message
        self.digest = fingerprint(command)
        self.deadline = Deadline()
        self.kept = kept
        """It is written down: from now on it is told what became of it."""
        self.committed = False
        """It is being written down as begun, so it goes on to an end that is told."""
        self.plan: Plan | None = None
        self.came = time.monotonic()
        self.began = self.heard = 0.0
        """When it began, and when it last said something."""
        self.said = ""
        self.silent = False
        """It was ended because it said nothing for too long."""
        self.task: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> str:
        """Its id."""
        return self.command.request_id

    @property
    def is_job(self) -> bool:
        """Whether it goes on in the background."""
        return self.plan is not None and self.plan.background

    def begin(self, plan: Plan) -> None:
        """It runs from now on."""
        self.plan = plan
        self.began = self.heard = time.monotonic()

    def hear(self, text: str) -> None:
        """It said something."""
        self.heard = time.monotonic()
        self.said = (self.said + text)[-TAIL:]

    def describe(self) -> dict[str, JSON]:
        """How it stands, for who asks."""
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
def watched(live: Live, seconds: float | None) -> Generator[None]:
    """End a call that says nothing for so long; None lets it be silent."""
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
