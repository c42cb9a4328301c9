"""What is kept of conversations: a session, its runs, and what they used up."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.events import StopReason
from evoclaw.core.labels import CLEAN, LOCAL, Label
from evoclaw.store.databases.database import StoreError


class Session(Struct, frozen=True):
    """A conversation with an agent."""

    id: str
    agent: str
    owner: str = ""
    """Whose it is."""
    title: str = ""
    parent: str = ""
    """The session that began it, if one did."""
    depth: int = 0
    """How many sessions are above it."""
    capabilities: frozenset[str] = frozenset()
    """The most its runs may hold."""
    tools: frozenset[str] | None = None
    """The most its runs may use by name; None is all that the capabilities allow."""
    created_at: float = 0.0
    tenant: str = LOCAL.tenant
    """Whose its owner is. The store that keeps it says so, not the caller."""


class Spent(Struct, frozen=True):
    """What runs have used up."""

    turns: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """None when a part of it has no known price."""


class StoredRun(Struct, frozen=True):
    """One message answered, or being answered."""

    id: str
    session_id: str
    asked: str
    """What the user, or the session above, said."""
    parent_run: str
    root_run: str
    """The run that all of them spend for."""
    background: bool
    """Nobody waits for it."""
    stop: StopReason | None
    spent: Spent
    began_at: float
    ended_at: float | None
    label: Label = CLEAN
    """Of what whoever asked had seen."""
    epoch: int = 0
    """How often somebody took it up."""
    holder: str = ""
    """Who drives it, or did last."""
    lease_until: float | None = None
    """Until when it is the holder's; None is nobody's, or for as long as an engine says."""

    @property
    def is_open(self) -> bool:
        """Whether it is to be gone on with."""
        return self.stop is None or self.stop is StopReason.WAITING


class Fenced(StoreError):
    """Somebody else drives the run by now, under a higher epoch: nothing was stored."""

    def __init__(self, run_id: str, epoch: int, now: int) -> None:
        super().__init__(
            f"run {run_id} is driven by another orchestrator (epoch {now}, ours is {epoch}); "
            "leave it alone"
        )
        self.run_id, self.epoch, self.now = run_id, epoch, now


class Listed(Struct, frozen=True):
    """A session and the last of its runs."""

    session: Session
    last: StoredRun | None
    messages: int
