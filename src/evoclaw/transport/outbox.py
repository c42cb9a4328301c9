"""What is needed of the store that commands are kept in; it outlives this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CLOSED = ("settled", "expired")
"""The states of a command that has ended; nothing changes it any more."""


class Wanted(Protocol):
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
        """How far it came."""
        ...


class Backlog(Protocol):
    """What the store still has for an edge."""

    async def wanted(self, agent_id: str, now: float, limit: int = -1) -> Sequence[Wanted]:
        """Commands without an outcome, oldest first, so many; none that expired unsent."""
        ...

    async def mark(self, request_id: str, state: str) -> bool:
        """Note how far a command has come; False if it came as far already, or is closed."""
        ...


class Kept(Protocol):
    """A command as the outbox has it."""

    @property
    def agent_id(self) -> str:
        """Who was asked."""
        ...

    @property
    def payload(self) -> bytes:
        """The command as it was encoded last."""
        ...

    @property
    def state(self) -> str:
        """How far it came; `settled` and `expired` are the ends."""
        ...

    @property
    def outcome(self) -> bytes | None:
        """How it ended, if it has and was ever sent."""
        ...


class Stored(Protocol):
    """What became of a command that was put into the outbox."""

    @property
    def row(self) -> Kept | None:
        """What was there already."""
        ...


class Outbox(Backlog, Protocol):
    """Where commands are kept until their outcome is known; it outlives this process."""

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
    ) -> Stored:
        """Keep a command for who asked; raise when there are too many, or another one has it."""
        ...

    async def get(self, request_id: str) -> Kept | None:
        """What is known of a command."""
        ...

    async def expire(self, now: float) -> list[str]:
        """Close the commands whose time is over and that were never sent."""
        ...

    async def settle(self, request_id: str, agent_id: str, outcome: bytes) -> str:
        """Keep how a command ended: `first`, `again`, or `foreign` if it was not asked of it."""
        ...
