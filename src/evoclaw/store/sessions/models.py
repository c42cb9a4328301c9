"""The stored values of sessions: a session, its runs, and their usage."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.events import StopReason
from evoclaw.core.labels import CLEAN, LOCAL_PRINCIPAL, Label
from evoclaw.store.databases.database import StoreError


class Session(Struct, frozen=True):
    """A conversation with an agent."""

    id: str
    agent: str
    owner: str = ""
    """The user."""
    title: str = ""
    parent: str = ""
    """The session that started it, if one did."""
    depth: int = 0
    """How many ancestors it has."""
    capabilities: frozenset[str] = frozenset()
    """The most capabilities that its runs may hold."""
    tools: frozenset[str] | None = None
    """The tools that its runs may use at most; None is all that the capabilities allow."""
    created_at: float = 0.0
    tenant: str = LOCAL_PRINCIPAL.tenant
    """The tenant of its owner; set by the store, not by the caller."""


class RunUsage(Struct, frozen=True):
    """The usage of runs."""

    turns: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """In US dollars; None if the price of a part is unknown."""


class StoredRun(Struct, frozen=True):
    """A run: one message, and the state of its answer."""

    id: str
    session_id: str
    message: str
    """The message of the user, or of the parent session."""
    parent_run: str
    root_run: str
    """The run at the top, whose budget all descendants share."""
    background: bool
    """No parent run waits for it."""
    stop: StopReason | None
    usage: RunUsage
    began_at: float
    ended_at: float | None
    label: Label = CLEAN
    """The label of what the caller had seen."""
    epoch: int = 0
    """How often a process started or resumed it."""
    holder: str = ""
    """The process that drives it, or did last."""
    lease_until: float | None = None
    """When the lease of the holder ends; None without a lease, or if a job queue manages it."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.stop is None or self.stop is StopReason.WAITING


class Fenced(StoreError):
    """Another process drives the run under a higher epoch; nothing was stored."""

    def __init__(self, run_id: str, epoch: int, now: int) -> None:
        super().__init__(
            f"run {run_id} is driven by another orchestrator (epoch {now}, ours is {epoch}); "
            "leave it alone"
        )
        self.run_id, self.epoch, self.now = run_id, epoch, now


class SessionSummary(Struct, frozen=True):
    """A session with its last run and the number of its messages."""

    session: Session
    last: StoredRun | None
    messages: int
