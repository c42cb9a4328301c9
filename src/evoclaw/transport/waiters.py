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
        "_heard",
        "agent_id",
        "command",
        "expires_at",
        "future",
        "payload",
        "seq",
        "talk",
        "told",
    )

    def __init__(self, agent_id: str, command: Command, *, talk: bool = False) -> None:
        self.agent_id, self.command = agent_id, command
        self.talk = talk
        """It may be asked again, so it is not stored."""
        self.payload = b""
        """As it was published last; empty until it was stored."""
        self.expires_at = 0.0
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.seq = self.told = 0
        self._heard: list[Progress | None] = []

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return bool(self._heard)

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
        return self.agent_id == agent_id and fingerprint(command) == fingerprint(self.command)

    @contextmanager
    def joined(self, progress: Progress | None) -> Generator[None]:
        """Wait, and be told its output, while the block runs."""
        self._heard.append(progress)
        try:
            yield
        finally:
            self._heard.remove(progress)

    def output(self, chunk: Chunk) -> None:
        """Tell a piece of output, each once and in order."""
        if chunk.seq > self.seq and self.told < MOST_OUTPUT:
            self.seq, self.told = chunk.seq, self.told + len(chunk.text)
            for progress in self._heard:
                if progress is not None:
                    progress(chunk.text)

    def settle(self, outcome: Outcome) -> None:
        """Tell how it ended; the first word counts."""
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, problem: ToolFailure) -> None:
        """Tell those who joined that it was never sent."""
        if not self.future.done():
            self.future.set_exception(problem)
            self.future.exception()  # seen: whoever sent it knows by itself
