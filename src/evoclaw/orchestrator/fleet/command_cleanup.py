"""Closes overdue commands, and deletes old ones."""

from __future__ import annotations

import asyncio

from evoclaw.core.errors import EvoClawError
from evoclaw.store.calls.commands import CommandStore
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


class CommandCleanup:
    """Cleans up the command store periodically."""

    def __init__(self, commands: CommandStore, requests: Requests) -> None:
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
