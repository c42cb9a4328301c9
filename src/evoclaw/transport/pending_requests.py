"""`PendingRequest`: a command whose outcome one or several callers wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ports import Progress
from evoclaw.transport.wire import Command, Outcome, OutputChunk, fingerprint

MAX_OUTPUT_CHARS = 1_000_000
"""Output of a call that is passed on while it runs; the rest is dropped."""


class PendingRequest:
    """A command that one or several callers wait for."""

    __slots__ = (
        "_joined",
        "agent_id",
        "command",
        "_problem",
        "answer",
        "expires_at",
        "must_start",
        "must_end",
        "payload",
        "seq",
        "query",
        "timer",
        "delivered",
    )

    def __init__(self, agent_id: str, command: Command, *, query: bool = False) -> None:
        self.agent_id, self.command = agent_id, command
        self.query = query
        """It may be repeated, so it is not stored."""
        self.payload = b""
        """The message as last published; empty until it was stored."""
        self.expires_at = 0.0
        self.must_start = self.must_end = 0.0
        """When these deadlines are checked, by the loop's clock."""
        self.timer: asyncio.TimerHandle | None = None
        self.answer: Outcome | None = None
        self.seq = self.delivered = 0
        self._problem: ToolFailure | None = None
        self._joined: dict[asyncio.Future[Outcome], Progress | None] = {}

    @property
    def wanted(self) -> bool:
        """Whether a caller still waits."""
        return bool(self._joined)

    @property
    def is_job(self) -> bool:
        """Whether it is answered as soon as it has started."""
        return self.command.payload.get("background") is True

    @property
    def name(self) -> str:
        """The tool, or the command."""
        tool = self.command.payload.get("tool")
        return tool if isinstance(tool, str) else self.command.command

    def is_for(self, agent_id: str, command: Command) -> bool:
        """Whether this is the same command to the same agent."""
        whose = (self.agent_id, self.command.tenant)
        return whose == (agent_id, command.tenant) and (
            fingerprint(command) == fingerprint(self.command)
        )

    @contextmanager
    def joined(self, progress: Progress | None) -> Generator[asyncio.Future[Outcome]]:
        """Wait for the outcome, and get its output before, while the block runs."""
        # One future for each caller: a caller that stops waiting cancels its own.
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._joined[answer] = progress
        self._deliver(answer)
        try:
            yield answer
        finally:
            del self._joined[answer]

    def output(self, chunk: OutputChunk) -> None:
        """Pass on a chunk of output, each once and in order."""
        if chunk.seq > self.seq and self.delivered < MAX_OUTPUT_CHARS:
            self.seq, self.delivered = chunk.seq, self.delivered + len(chunk.text)
            for progress in self._joined.values():
                if progress is not None:
                    progress(chunk.text)

    def settle(self, outcome: Outcome) -> None:
        """Deliver the outcome; only the first counts."""
        if self.answer is None:
            self.answer = outcome
            self._deliver(*self._joined)

    def fail(self, problem: ToolFailure) -> None:
        """Tell the callers that it was never sent."""
        self._problem = problem
        self._deliver(*self._joined)

    def _deliver(self, *waiting: asyncio.Future[Outcome]) -> None:
        for future in waiting:
            if future.done():
                continue
            if self.answer is not None:
                future.set_result(self.answer)
            elif self._problem is not None:
                future.set_exception(self._problem)
                future.exception()  # retrieved: the sender raises it itself
