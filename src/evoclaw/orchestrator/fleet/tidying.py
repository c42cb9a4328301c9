"""Closing what nobody waits for any more: overdue commands, and old ones that are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from evoclaw.core.errors import EvoClawError
from evoclaw.transport.requests import OUTCOME_GRACE_S, Requests
from evoclaw.transport.wire import MAX_JOB_TIMEOUT_S, Command, WireError, read_command

OFTEN = 30.0
"""Seconds between two looks."""
MARGIN = 60.0
"""Seconds after which a command's own waiter, here or in another process, has surely given up."""
DEFAULT_WORK = 300.0
"""Seconds that a command may take which does not say."""
KEPT = 7 * 86_400.0
"""Seconds that closed commands are kept."""


class Overdue(Protocol):
    """A command without an outcome that should have begun."""

    @property
    def request_id(self) -> str:
        """Its id."""
        ...

    @property
    def agent_id(self) -> str:
        """Who was asked."""
        ...

    @property
    def payload(self) -> bytes:
        """The command."""
        ...


class Shelf(Protocol):
    """What of the store is tidied."""

    async def expire(self, now: float) -> list[str]:
        """Close what is overdue and was never sent."""
        ...

    async def overdue(self, now: float) -> Sequence[Overdue]:
        """What was sent, should have begun, and has no outcome."""
        ...

    async def prune(self, older_than: float) -> int:
        """Forget what was closed before."""
        ...


class Tidying:
    """Looks through the store from time to time."""

    def __init__(self, shelf: Shelf, requests: Requests) -> None:
        self._shelf, self._requests = shelf, requests

    async def run(self) -> None:
        """Tidy until cancelled."""
        while True:
            await asyncio.sleep(OFTEN)
            try:
                await self.tidy()
            except EvoClawError:
                self._requests.counts["the store failed"] += 1

    async def tidy(self) -> None:
        """Close what is overdue, forget what is old."""
        now = self._requests.clock()
        await self._shelf.expire(now)
        for row in await self._shelf.overdue(now):
            command = _read(row.payload)
            if last_moment(command) + MARGIN <= now:
                name = command.payload.get("tool", command.command)
                await self._requests.give_up(row.agent_id, row.request_id, str(name))
        await self._shelf.prune(now - KEPT)


def last_moment(command: Command) -> float:
    """When nobody waits for a command any more."""
    given = command.payload.get("timeout_ms")
    usual = MAX_JOB_TIMEOUT_S if command.payload.get("background") else DEFAULT_WORK
    work = given / 1000 if isinstance(given, int | float) and given > 0 else usual
    return (command.expires_at or 0.0) + work + OUTCOME_GRACE_S


def _read(payload: bytes) -> Command:
    try:
        return read_command(payload)
    except WireError:
        return Command("call")  # of another version: nobody will answer it
