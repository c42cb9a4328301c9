"""The port of the store of commands, which survives this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CLOSED_STATES = ("settled", "expired")
"""The final states of a command."""


class WantedCommand(Protocol):
    """A stored command that an edge should still get."""

    @property
    def request_id(self) -> str:
        """Its id."""
        ...

    @property
    def payload(self) -> bytes:
        """The command as it was encoded."""
        ...

    @property
    def state(self) -> str:
        """Its state."""
        ...


class CommandBacklog(Protocol):
    """The stored commands that an edge should still get."""

    async def wanted(self, agent_id: str, now: float, limit: int = -1) -> Sequence[WantedCommand]:
        """Commands without an outcome, oldest first, up to a limit; none that expired unsent."""
        ...

    async def mark(self, request_id: str, state: str) -> bool:
        """Advance the state of a command; False if it is as far already, or closed."""
        ...


class StoredCommand(Protocol):
    """A command in the outbox."""

    @property
    def agent_id(self) -> str:
        """The agent it is for."""
        ...

    @property
    def payload(self) -> bytes:
        """The command as last encoded."""
        ...

    @property
    def state(self) -> str:
        """Its state; `settled` and `expired` are final."""
        ...

    @property
    def outcome(self) -> bytes | None:
        """Its outcome, if it has ended and was ever sent."""
        ...


class PutResult(Protocol):
    """The result of putting a command into the outbox."""

    @property
    def row(self) -> StoredCommand | None:
        """The command that was stored before, if any."""
        ...


class Outbox(CommandBacklog, Protocol):
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
    ) -> PutResult:
        """Store a command; raise when there are too many, or its id is taken."""
        ...

    async def get(self, request_id: str) -> StoredCommand | None:
        """A stored command."""
        ...

    async def expire(self, now: float) -> list[str]:
        """Close the expired commands that were never sent."""
        ...

    async def settle(self, request_id: str, agent_id: str, outcome: bytes) -> str:
        """Store an outcome: `first`, `again`, or `foreign` if the agent was not asked."""
        ...
