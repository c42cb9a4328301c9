"""What a run is begun with, how it is shown, and why one is not begun: the words of `Runs`."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import StopReason
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import Message, UserMessage
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.cleaning import one_line

LONGEST_TITLE = 80
"""Characters."""


class Errand(Struct, frozen=True, omit_defaults=True):
    """What a run is begun with; kept with the run, so that a restart goes on with the same."""

    message: str = ""
    """What is said; may be empty where `messages` end with it."""
    session_id: str = ""
    """Where; a new session if empty."""
    agent: str = ""
    """Who answers in a new session; the default agent if empty."""
    title: str = ""
    """Of a new session; the first words of what is said if empty."""
    settings: LoopSettings | None = None
    """Instead of the agent's."""
    model: str = ""
    """Instead of the agent's."""
    messages: tuple[Message, ...] = ()
    """A whole history, instead of a session's; only in a session where nothing was said yet."""
    tools: tuple[Tool, ...] = ()
    """The caller's own, run by the caller."""
    single: bool = False
    """One reply, no tools."""
    label: Label = CLEAN
    """Of what the message was made from, where that is not only what the user himself said."""
    traceparent: str = ""
    """Where in a caller's trace it was begun, as W3C says it."""

    @property
    def asked(self) -> str:
        """What is said, wherever it stands."""
        if self.message:
            return self.message
        last = self.messages[-1] if self.messages else None
        return last.text if isinstance(last, UserMessage) else ""

    @property
    def heading(self) -> str:
        """The title that its session gets if it has none."""
        return one_line(self.title or self.asked, LONGEST_TITLE)

    def digest(self) -> str:
        """The same for the same errand, and for no other, whichever attempt traces it."""
        asked = msgspec.structs.replace(self, traceparent="")
        return sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def errand_of(blob: bytes | None) -> Errand:
    """An errand as it was kept; that of a run which was begun without one says nothing."""
    return Errand() if blob is None else msgspec.json.decode(blob, type=Errand)


class State(StrEnum):
    """How a run stands."""

    QUEUED = "queued"
    """It is kept, and begins when there is room and what was before it in its session ended."""
    RUNNING = "running"
    WAITING = "waiting"
    """For a person, or for its caller; it goes on by itself when the answer is there."""
    ENDED = "ended"


class RunView(Struct, frozen=True, omit_defaults=True):
    """A run as it is shown."""

    run_id: str
    session_id: str
    agent: str
    state: State
    stop: StopReason | None = None
    """Why it ended, or that it waits."""
    asked: str = ""
    text: str = ""
    """The answer, once it ended."""
    reason: str = ""
    """For people: what exactly ended it, or what it waits for."""
    turns: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """None when a part of it has no known price."""
    began_at: float = 0.0
    ended_at: float | None = None
    parent_run: str = ""
    owner: str = ""
    """Whose session it is in."""


_Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]


class RunSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many runs go on, and how they are held."""

    at_once: _Count = 256
    """Runs that go on in this process; the others are queued."""
    per_tenant: _Count = 192
    """Of them, those of one tenant: so that there is always room for another."""
    queued: _Count = 10_000
    """Runs that may be queued in all; more are refused."""
    queued_per_tenant: _Count = 5_000
    """Of them, those of one tenant."""
    queued_per_session: _Count = 100
    """Of them, those of one session."""
    slow_watcher: _Count = 1_000
    """Records that a watcher may be behind before it is dropped."""
    lease_s: Annotated[float, Meta(gt=0, le=3_600)] = 10.0
    """Seconds after which a run is taken over whose orchestrator gives no sign of life."""
    look_s: Annotated[float, Meta(gt=0, le=3_600)] = 1.0
    """Seconds between two looks at what other processes did."""
    drain_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Seconds that runs have to end when the service ends."""
    keys_kept_s: Annotated[float, Meta(gt=0)] = 7 * 86_400.0
    """Seconds for which an idempotency key is remembered."""


class NoSession(EvoClawError):
    """There is no session of that id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r}")
        self.session_id = session_id


class Busy(EvoClawError):
    """A session is answering something else, or has not ended what it was doing."""

    def __init__(self, session_id: str, why: str) -> None:
        super().__init__(f"session {session_id!r} {why}")
        self.session_id = session_id


class NoRun(EvoClawError):
    """There is no run of that id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {one_line(run_id)!r}")
        self.run_id = run_id


class KeyReused(EvoClawError):
    """An idempotency key was used before, for something else."""

    def __init__(self, key: str, run_id: str) -> None:
        shown = one_line(key, LONGEST_TITLE)
        super().__init__(f"the key {shown!r} was used for another run already; take a new key")
        self.key, self.run_id = key, run_id


class OtherHistory(EvoClawError):
    """A whole history was given for a session in which something was said already."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has a history of its own; "
            "say a message in it, or give a history without a session"
        )
        self.session_id = session_id


class NothingAsked(EvoClawError):
    """An errand says nothing."""

    def __init__(self) -> None:
        super().__init__("say something: the message is empty")


class Draining(EvoClawError):
    """No run is begun any more: the process is about to end."""

    def __init__(self) -> None:
        super().__init__("the orchestrator is shutting down; try again in a moment")


class TooMany(EvoClawError):
    """Too many runs are queued already."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{limit} runs of {what} are queued already; try again later")
        self.what, self.limit = what, limit
