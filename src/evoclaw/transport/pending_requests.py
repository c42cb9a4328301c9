"""Who waits for how a command ends."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ports import Progress
from evoclaw.transport.wire import Chunk, Command, Outcome, fingerprint

MOST_OUTPUT = 1_000_000
"""Characters of a call's output that are passed on while it runs, whatever its edge sends."""


class Waiter:
    """One command that is waited for, by one or by several."""

    __slots__ = (
        "_joined",
        "agent_id",
        "command",
        "_problem",
        "answer",
        "expires_at",
        "must_begin",
        "must_end",
        "payload",
        "seq",
        "talk",
        "timer",
        "told",
    )

    def __init__(self, agent_id: str, command: Command, *, talk: bool = False) -> None:
        self.agent_id, self.command = agent_id, command
        self.talk = talk
        """It may be asked again, so it is not stored."""
        self.payload = b""
        """As it was published last; empty until it was stored."""
        self.expires_at = 0.0
        self.must_begin = self.must_end = 0.0
        """When that is looked at, by the loop's clock."""
        self.timer: asyncio.TimerHandle | None = None
        self.answer: Outcome | None = None
        self.seq = self.told = 0
        self._problem: ToolFailure | None = None
        self._joined: dict[asyncio.Future[Outcome], Progress | None] = {}

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return bool(self._joined)

    @property
    def is_job(self) -> bool:
        """Whether it is answered as soon as it has begun."""
        return self.command.payload.get("background") is True

    @property
    def name(self) -> str:
        """What is asked for, in a word."""
        tool = self.command.payload.get("tool")
        return tool if isinstance(tool, str) else self.command.command

    def is_for(self, agent_id: str, command: Command) -> bool:
        """Whether this is the same asking."""
        whose = (self.agent_id, self.command.tenant)
        return whose == (agent_id, command.tenant) and (
            fingerprint(command) == fingerprint(self.command)
        )

    @contextmanager
    def joined(self, progress: Progress | None) -> Generator[asyncio.Future[Outcome]]:
        """Be told the answer, and its output before, while the block runs."""
        # One for each: who stops waiting cancels what it waits for.
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._joined[answer] = progress
        self._tell(answer)
        try:
            yield answer
        finally:
            del self._joined[answer]

    def output(self, chunk: Chunk) -> None:
        """Tell a piece of output, each once and in order."""
        if chunk.seq > self.seq and self.told < MOST_OUTPUT:
            self.seq, self.told = chunk.seq, self.told + len(chunk.text)
            for progress in self._joined.values():
                if progress is not None:
                    progress(chunk.text)

    def settle(self, outcome: Outcome) -> None:
        """Tell how it ended; the first word counts."""
        if self.answer is None:
            self.answer = outcome
            self._tell(*self._joined)

    def fail(self, problem: ToolFailure) -> None:
        """Tell those who joined that it was never sent."""
        self._problem = problem
        self._tell(*self._joined)

    def _tell(self, *waiting: asyncio.Future[Outcome]) -> None:
        for waiter in waiting:
            if waiter.done():
                continue
            if self.answer is not None:
                waiter.set_result(self.answer)
            elif self._problem is not None:
                waiter.set_exception(self._problem)
                waiter.exception()  # seen: whoever sent it knows by itself
