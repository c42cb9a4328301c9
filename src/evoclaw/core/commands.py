"""The values of an outbox: stored commands, their states, and what storing them returned."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from evoclaw.core.labels import LOCAL_PRINCIPAL


class CommandState(StrEnum):
    """The state of a command, as far as the orchestrator knows."""

    QUEUED = "queued"
    """Never sent: it cannot have started."""
    SENT = "sent"
    ACCEPTED = "accepted"
    CANCELLING = "cancelling"
    SETTLED = "settled"
    EXPIRED = "expired"
    """It expired before it was sent."""


OPEN_STATES = (
    CommandState.QUEUED,
    CommandState.SENT,
    CommandState.ACCEPTED,
    CommandState.CANCELLING,
)
"""In the order in which a command passes through them; it never goes back."""
FINAL_STATES = (CommandState.SETTLED, CommandState.EXPIRED)


class CommandRow(Struct, frozen=True):
    """A stored command."""

    request_id: str
    agent_id: str
    run_id: str
    payload: bytes
    expires_at: float | None
    """Wall clock; the command is not sent after that."""
    state: CommandState
    outcome: bytes | None
    """The first outcome that arrived; later ones do not count."""
    settled_at: float | None
    tenant: str = LOCAL_PRINCIPAL.tenant
    """The tenant that asked for it."""


class CommandPutKind(StrEnum):
    """Whether a command was stored before."""

    NEW = "new"
    KNOWN = "known"


class CommandPutResult(Struct, frozen=True):
    """The result of putting a command into the store."""

    kind: CommandPutKind
    row: CommandRow | None = None
    """The command that was stored before, with its outcome if it has one."""


class SettleResult(StrEnum):
    """Whether an outcome settled its command."""

    FIRST = "first"
    AGAIN = "again"
    """The command was closed already; a different outcome is stored as a late one."""
    FOREIGN = "foreign"
    """There is no such command, or it was sent to another agent."""


class LateOutcome(Struct, frozen=True):
    """An outcome that arrived after the command was closed."""

    at: float
    outcome: bytes
