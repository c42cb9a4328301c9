"""Run requests, run views, run settings, and the errors that a run request can raise."""

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
from evoclaw.core.messages import ImageBlock, Message, UserMessage
from evoclaw.core.tools import Tool
from evoclaw.governance.approvals import WorkflowStepRef
from evoclaw.orchestrator.sanitizing import one_line

MAX_TITLE_CHARS = 80
"""Characters."""


class RunRequest(Struct, frozen=True, omit_defaults=True):
    """What a run is started with; stored with the run, so that a restart continues with it."""

    message: str = ""
    """The user's message; may be empty if `messages` ends with it."""
    session_id: str = ""
    """The session; a new one if empty."""
    agent: str = ""
    """The agent of a new session; the default agent if empty."""
    title: str = ""
    """The title of a new session; the first words of the message if empty."""
    settings: LoopSettings | None = None
    """Loop settings that replace the agent's."""
    model: str = ""
    """A model that replaces the agent's."""
    messages: tuple[Message, ...] = ()
    """A complete history; allowed only in a session without messages."""
    tools: tuple[Tool, ...] = ()
    """The caller's tools; the caller runs them."""
    single: bool = False
    """One reply without tools."""
    label: Label = CLEAN
    """The label of what the message was made from, if not only from the user's own words."""
    images: tuple[ImageBlock, ...] = ()
    """Images that belong to the message."""
    traceparent: str = ""
    """The caller's position in its trace, as a W3C `traceparent`."""
    on: str = ""
    """The edge that the session works on from this run on; if empty, the one it works on."""
    workflow_step: WorkflowStepRef | None = None
    """The step of a workflow that started the run; approvals of the step cover its calls."""

    @property
    def last_user_text(self) -> str:
        """The user's message: `message`, or the last of `messages`."""
        if self.message:
            return self.message
        last = self.messages[-1] if self.messages else None
        return last.text if isinstance(last, UserMessage) else ""

    @property
    def session_title(self) -> str:
        """The title for a session that has none."""
        return one_line(self.title or self.last_user_text, MAX_TITLE_CHARS)

    def digest(self) -> str:
        """A hash of the request without its trace; equal requests have equal digests."""
        request = msgspec.structs.replace(self, traceparent="")
        return sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()


def decode_run_request(blob: bytes | None) -> RunRequest:
    """Decode a stored run request; an empty request for a run that was stored without one."""
    return RunRequest() if blob is None else msgspec.json.decode(blob, type=RunRequest)


class RunStatus(StrEnum):
    """The status of a run."""

    QUEUED = "queued"
    """Stored; starts when a slot is free and the earlier runs of its session ended."""
    RUNNING = "running"
    WAITING = "waiting"
    """Waits for a person or for its caller; continues by itself once the answer is stored."""
    ENDED = "ended"


class RunView(Struct, frozen=True, omit_defaults=True):
    """A run as the API shows it."""

    run_id: str
    """The id of the run."""
    session_id: str
    """The session that it belongs to."""
    agent: str
    """The name of the agent."""
    state: RunStatus
    """The status of the run."""
    stop: StopReason | None = None
    """Why the run ended, or that it waits."""
    asked: str = ""
    """The message that started it."""
    text: str = ""
    """The answer, once the run ended."""
    reason: str = ""
    """For people: what ended the run, or what it waits for."""
    turns: int = 0
    """How many turns it took so far."""
    calls: int = 0
    """How many calls it made so far."""
    tokens_in: int = 0
    """Tokens of its prompts."""
    tokens_out: int = 0
    """Tokens of its replies."""
    cost: float | None = 0.0
    """In US dollars; null if a reply has no known price."""
    began_at: float = 0.0
    """When it started, in Unix seconds."""
    ended_at: float | None = None
    """When it ended, in Unix seconds; null: it has not."""
    parent_run: str = ""
    """The run that started it; empty: none."""
    owner: str = ""
    """The user who owns the session."""


class AgentRunCount(Struct, frozen=True):
    """How often an agent ran."""

    agent: str
    """The name of the agent."""
    runs: int
    """The number of its runs."""
    last_at: float
    """When its last run started."""
    cost: float
    """In dollars, of the runs with a known price."""


_PositiveInt: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]


class RunSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many runs may be active or queued, and how long claims and keys last."""

    at_once: _PositiveInt = 256
    """Runs that are active in this process; the others are queued."""
    per_tenant: _PositiveInt = 192
    """Active runs of one tenant, so that other tenants always find a free slot."""
    queued: _PositiveInt = 10_000
    """Runs of all tenants that may be queued; more are rejected."""
    queued_per_tenant: _PositiveInt = 5_000
    """Runs of one tenant that may be queued."""
    queued_per_session: _PositiveInt = 100
    """Runs of one session that may be queued."""
    slow_watcher: _PositiveInt = 1_000
    """Records that a watcher may lag behind before it is dropped."""
    lease_s: Annotated[float, Meta(gt=0, le=3_600)] = 10.0
    """Seconds without a heartbeat after which another orchestrator takes over a run, or receives
    the messages of a chat channel."""
    look_s: Annotated[float, Meta(gt=0, le=3_600)] = 1.0
    """Seconds between two polls of the store for changes by other processes."""
    drain_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Seconds that active runs have to end when the service shuts down."""
    keys_kept_s: Annotated[float, Meta(gt=0)] = 7 * 86_400.0
    """Seconds for which an idempotency key is stored."""


class SessionNotFound(EvoClawError):
    """No session has that id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r}; list the sessions to see their ids")
        self.session_id = session_id


class EdgeNotUsable(EvoClawError):
    """A session cannot work on the edge that was named for it."""

    def __init__(self, edge: str, why: str) -> None:
        super().__init__(f"cannot work on {one_line(edge)!r}: {why}")
        self.edge = edge


class UnknownEdge(EdgeNotUsable):
    """No edge has the name."""


class SessionBusy(EvoClawError):
    """A session has another open run, or none that the request could apply to."""

    def __init__(self, session_id: str, why: str) -> None:
        super().__init__(f"session {session_id!r} {why}")
        self.session_id = session_id


class RunNotFound(EvoClawError):
    """No run has that id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {one_line(run_id)!r}; list the runs to see their ids")
        self.run_id = run_id


class KeyReused(EvoClawError):
    """An idempotency key was used before, for another request."""

    def __init__(self, key: str, run_id: str) -> None:
        shown = one_line(key, MAX_TITLE_CHARS)
        super().__init__(
            f"the idempotency key {shown!r} was already used for another run; use a new key"
        )
        self.key, self.run_id = key, run_id


class SessionHasHistory(EvoClawError):
    """A complete history was given for a session that already has messages."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} already has messages; "
            "send one message to it, or send the history without a session id"
        )
        self.session_id = session_id


class EmptyMessage(EvoClawError):
    """A run request has no message."""

    def __init__(self) -> None:
        super().__init__("the message is empty; send some text")


class Draining(EvoClawError):
    """The process is shutting down and starts no more runs."""

    def __init__(self) -> None:
        super().__init__("the orchestrator is shutting down; try again in a moment")


class RunQueueFull(EvoClawError):
    """Too many runs are queued."""

    def __init__(self, scope: str, limit: int) -> None:
        super().__init__(
            f"the run queue is full: {limit} runs of {scope} are queued; try again later"
        )
        self.scope, self.limit = scope, limit
