"""Closes overdue commands, and deletes old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from evoclaw.core.errors import EvoClawError
from evoclaw.transport.requests import OUTCOME_GRACE_S, Requests
from evoclaw.transport.wire import MAX_JOB_TIMEOUT_S, Command, WireError, read_command

OFTEN = 30.0
"""Between two cleanups."""
MARGIN = 60.0
"""After which the process that sent a command has certainly stopped waiting for it."""
DEFAULT_WORK = 300.0
"""Of a command without a timeout."""
KEPT = 7 * 86_400.0
"""Of closed commands."""


class Overdue(Protocol):
    """A command that should have started, and has no outcome."""

    @property
    def request_id(self) -> str:
        """Its id."""
        ...

    @property
    def agent_id(self) -> str:
        """Its edge."""
        ...

    @property
    def payload(self) -> bytes:
        """The encoded command."""
        ...


class Shelf(Protocol):
    """The part of the command store that the cleanup needs."""

    async def expire(self, now: float) -> list[str]:
        """Close commands that are overdue and were never sent."""
        ...

    async def overdue(self, now: float) -> Sequence[Overdue]:
        """Commands that were sent, should have started, and have no outcome."""
        ...

    async def prune(self, older_than: float) -> int:
        """Delete commands that were closed before a time."""
        ...


class Tidying:
    """Cleans up the command store periodically."""

    def __init__(self, shelf: Shelf, requests: Requests) -> None:
        self._shelf, self._requests = shelf, requests

    async def run(self) -> None:
        """Clean up until cancelled."""
        while True:
            await asyncio.sleep(OFTEN)
            try:
                await self.tidy()
            except EvoClawError:
                self._requests.counts["the store failed"] += 1

    async def tidy(self) -> None:
        """Close overdue commands, and delete old ones."""
        now = self._requests.clock()
        await self._shelf.expire(now)
        for row in await self._shelf.overdue(now):
            command = _read(row.payload)
            if last_moment(command) + MARGIN <= now:
                name = command.payload.get("tool", command.command)
                await self._requests.give_up(row.agent_id, row.request_id, str(name))
        await self._shelf.prune(now - KEPT)


def last_moment(command: Command) -> float:
    """When the caller has stopped waiting for a command, in Unix seconds."""
    given_ms = command.payload.get("timeout_ms")
    default = MAX_JOB_TIMEOUT_S if command.payload.get("background") else DEFAULT_WORK
    timeout = given_ms / 1000 if isinstance(given_ms, int | float) and given_ms > 0 else default
    return (command.expires_at or 0.0) + timeout + OUTCOME_GRACE_S


def _read(payload: bytes) -> Command:
    try:
        return read_command(payload)
    except WireError:
        return Command("call")  # of another wire version: no edge answers it
