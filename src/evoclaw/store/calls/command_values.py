"""What is kept of commands: how far each came, and what became of what was put in."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from evoclaw.core.labels import LOCAL
from evoclaw.store.databases.database import StoreError


class CommandState(StrEnum):
    """How far a command came, as far as the orchestrator knows."""

    QUEUED = "queued"
    """Never sent: it cannot have begun."""
    SENT = "sent"
    ACCEPTED = "accepted"
    CANCELLING = "cancelling"
    SETTLED = "settled"
    EXPIRED = "expired"
    """Overdue before it was sent."""


OPEN = (CommandState.QUEUED, CommandState.SENT, CommandState.ACCEPTED, CommandState.CANCELLING)
"""In the order a command goes through them; none is gone back to."""
CLOSED = (CommandState.SETTLED, CommandState.EXPIRED)


class QueueFull(StoreError):
    """An agent has as many commands of a tenant waiting as it may."""

    def __init__(self, agent_id: str, cap: int) -> None:
        super().__init__(
            f"agent {agent_id!r} has {cap:,} commands waiting; "
            "wait for some to end, or cancel them, before asking for more"
        )
        self.agent_id, self.cap = agent_id, cap


class CommandRow(Struct, frozen=True):
    """What is known of a command."""

    request_id: str
    agent_id: str
    run_id: str
    payload: bytes
    expires_at: float | None
    """Wall clock; not sent after that."""
    state: CommandState
    outcome: bytes | None
    """The first one that came, which counts."""
    settled_at: float | None
    tenant: str = LOCAL.tenant
    """Who asked, and is told."""


class Kind(StrEnum):
    """Whether a command was there already."""

    NEW = "new"
    KNOWN = "known"


class Stored(Struct, frozen=True):
    """What became of a command that was put in."""

    kind: Kind
    row: CommandRow | None = None
    """What was there, if it was known; with its outcome, if it had one."""


class Settled(StrEnum):
    """What an outcome is to a command."""

    FIRST = "first"
    AGAIN = "again"
    """The command was closed already; this is a note, if it says something else."""
    FOREIGN = "foreign"
    """There is no such command, or it is another agent's."""


class Note(Struct, frozen=True):
    """An outcome that came too late to count."""

    at: float
    outcome: bytes
