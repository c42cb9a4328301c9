"""Closes overdue commands, and deletes old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from evoclaw.core.errors import EvoClawError
from evoclaw.transport.requests import OUTCOME_GRACE_S, Requests
from evoclaw.transport.wire import MAX_JOB_TIMEOUT_S, Command, WireError, read_command

CLEANUP_INTERVAL_S = 30.0
"""Between two cleanups."""
GIVE_UP_MARGIN_S = 60.0
"""After which the process that sent a command has certainly stopped waiting for it."""
DEFAULT_COMMAND_TIMEOUT_S = 300.0
"""Of a command without a timeout."""
COMMAND_RETENTION_S = 7 * 86_400.0
"""Of closed commands."""


class OverdueCommand(Protocol):
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


class ExpirableCommands(Protocol):
    """The part of the command store that the cleanup needs."""

    async def expire(self, now: float) -> list[str]:
        """Close commands that are overdue and were never sent."""
        ...

    async def overdue(self, now: float) -> Sequence[OverdueCommand]:
        """Commands that were sent, should have started, and have no outcome."""
        ...

    async def prune(self, older_than: float) -> int:
        """Delete commands that were closed before a time."""
        ...


class CommandCleanup:
    """Cleans up the command store periodically."""

    def __init__(self, commands: ExpirableCommands, requests: Requests) -> None:
        self._commands, self._requests = commands, requests

    async def run(self) -> None:
        """Clean up until cancelled."""
        while True:
            await asyncio.sleep(CLEANUP_INTERVAL_S)
            try:
                await self.clean_up()
            except EvoClawError:
                self._requests.counts["the store failed"] += 1

    async def clean_up(self) -> None:
        """Close overdue commands, and delete old ones."""
        now = self._requests.clock()
        await self._commands.expire(now)
        for row in await self._commands.overdue(now):
            command = _read(row.payload)
            if wait_deadline(command) + GIVE_UP_MARGIN_S <= now:
                name = command.payload.get("tool", command.command)
                await self._requests.give_up(row.agent_id, row.request_id, str(name))
        await self._commands.prune(now - COMMAND_RETENTION_S)


def wait_deadline(command: Command) -> float:
    """When the caller has stopped waiting for a command, in Unix seconds."""
    given_ms = command.payload.get("timeout_ms")
    default = MAX_JOB_TIMEOUT_S if command.payload.get("background") else DEFAULT_COMMAND_TIMEOUT_S
    timeout = given_ms / 1000 if isinstance(given_ms, int | float) and given_ms > 0 else default
    return (command.expires_at or 0.0) + timeout + OUTCOME_GRACE_S


def _read(payload: bytes) -> Command:
    try:
        return read_command(payload)
    except WireError:
        return Command("call")  # of another wire version: no edge answers it
