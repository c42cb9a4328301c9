"""Chooses the edge of a session by rendezvous hashing, and keeps it while it is online."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256


def rendezvous(sender: str, eligible: Sequence[str]) -> str | None:
    """The same edge for the same sender; if edges come and go, few senders move."""
    return max(eligible, key=lambda agent_id: (_weight(sender, agent_id), agent_id), default=None)


def _weight(sender: str, agent_id: str) -> bytes:
    return sha256(f"{sender}\0{agent_id}".encode()).digest()


class StickyRouting:
    """The edge of each session; it stays the same while that edge is eligible."""

    def __init__(self) -> None:
        self._chosen: dict[str, str] = {}

    def route(
        self, session: str, eligible: Sequence[str], *, asked: str | None = None
    ) -> str | None:
        """The edge for a session: the requested one, the previous one, or the hashed one."""
        if asked is not None:
            return asked if asked in eligible else None
        before = self._chosen.get(session)
        chosen = before if before in eligible else rendezvous(session, eligible)
        if chosen is not None:
            self._chosen[session] = chosen
        return chosen
