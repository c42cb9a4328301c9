"""The port of the store of commands, which survives this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from evoclaw.core.commands import CommandPutResult, CommandRow, SettleResult


class Outbox(Protocol):
    """Stores commands until their outcome is known."""

    async def put(
        self,
        request_id: str,
        agent_id: str,
        run_id: str,
        payload: bytes,
        expires_at: float,
        *,
        sent: bool = False,
        tenant: str = "",
    ) -> CommandPutResult:
        """Store a command; raise when there are too many, or its id is taken."""
        ...

    async def get(self, request_id: str) -> CommandRow | None:
        """A stored command."""
        ...

    async def wanted(self, agent_id: str, now: float, limit: int = -1) -> Sequence[CommandRow]:
        """Commands without an outcome, oldest first, up to a limit; none that expired unsent."""
        ...

    async def cancelling(self, agent_id: str) -> Sequence[CommandRow]:
        """The commands that an agent should cancel."""
        ...

    async def mark(self, request_id: str, state: str) -> bool:
        """Advance the state of a command; False if it is as far already, or closed."""
        ...

    async def expire(self, now: float) -> list[str]:
        """Close the expired commands that were never sent."""
        ...

    async def settle(self, request_id: str, agent_id: str, outcome: bytes) -> SettleResult:
        """Store an outcome; only the first one counts, and only from the agent of the command."""
        ...

    def settle_soon(
        self,
        request_id: str,
        agent_id: str,
        outcome: bytes,
        *,
        on_result: Callable[[SettleResult], None],
        on_failure: Callable[[BaseException], None],
    ) -> bool:
        """Store an outcome without a wait, if the store can: otherwise False, and use `settle`.

        Args:
            request_id: The command.
            agent_id: The agent that reports the outcome.
            outcome: The outcome.
            on_result: Gets the result; again, if the outcome had to be stored again.
            on_failure: Gets an error, if nothing was stored.
        """
        ...

    async def flush(self) -> None:
        """Wait until the outcomes stored so far would survive a crash."""
        ...
