"""The five ports: everything the loop needs from outside `core`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from msgspec import Struct

from evoclaw.core.events import Record, ReplyEvent
from evoclaw.core.history import History
from evoclaw.core.labels import LOCAL, Principal
from evoclaw.core.messages import ToolResult, UserMessage
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Call, Tool


class Request(Struct, frozen=True):
    """One asking of a model."""

    history: History
    tools: Sequence[Tool] = ()
    offer_tools: bool = True
    """False asks for a closing reply: the tools stand in the history but may not be called."""
    temperature: float | None = None
    max_tokens: int | None = None


class Provider(Protocol):
    """Who serves a model."""

    @property
    def model(self) -> str:
        """The `provider/model` name."""
        ...

    @property
    def profile(self) -> Profile:
        """What this model can do."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Yield deltas and retries, then exactly one `Replied`.

        Raise `ProviderError` if no reply can be had. A stream that breaks off never yields a
        partial call. Closing the iterator early ends the request.
        """
        ...


Progress: TypeAlias = Callable[[str], None]
"""Told a piece of a running call's output."""


class Executor(Protocol):
    """Where calls run."""

    def tools(self) -> Sequence[Tool]:
        """The tools there are now; the same object while nothing changed."""
        ...

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to its end. Raise `ToolFailure` to tell the model of a failure.

        When cancelled, leave nothing running.
        """
        ...


class Allow(Struct, frozen=True, tag="allow"):
    """The call may run."""

    code: str = ""


class Deny(Struct, frozen=True, tag="deny"):
    """The call may not run."""

    code: str
    """Short and stable, such as `permission` or `read_only`."""
    reason: str
    """For the model: why, and what to do instead."""
    for_people: str = ""
    """For people, when they should read something else."""


class Ask(Struct, frozen=True, tag="ask"):
    """A person must say."""

    code: str
    reason: str
    """For the model, should nobody be there; for people too, unless they read something else."""
    for_people: str = ""


Verdict: TypeAlias = Allow | Deny | Ask
ALLOW = Allow()


class Policy(Protocol):
    """A rule: may this run?"""

    async def judge(self, call: Call) -> Verdict:
        """Judge one call. Called in the order asked, before any call of the turn starts."""
        ...

    async def admit(self, turn: int) -> Verdict:
        """Judge whether the model may be asked once more.

        A `Deny` ends the run: as over budget if its code begins with `budget`, else as cancelled.
        """
        return ALLOW


class Decision(StrEnum):
    """A person's answer to an `Ask`."""

    ONCE = "once"
    SESSION = "session"
    DENY = "deny"
    PENDING = "pending"
    """Nobody answered yet: the run stops as `waiting`."""


class Approval(Struct, frozen=True, omit_defaults=True):
    """Who may say yes has said something."""

    decision: Decision
    reason: str = ""


class Approver(Protocol):
    """Who is asked when a policy says `Ask`."""

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Answer, or say `PENDING`."""
        ...


class Sink(Protocol):
    """Who listens."""

    def receive(self, record: Record) -> None:
        """Take one record; quick, in order."""
        ...


@dataclass(frozen=True, slots=True)
class AllowAll:
    """The policy of a run that has none: only for tests and fully trusted tools."""

    async def judge(self, call: Call) -> Verdict:
        """Allow."""
        return ALLOW

    async def admit(self, turn: int) -> Verdict:
        """Allow."""
        return ALLOW


@dataclass(frozen=True, slots=True)
class NobodyThere:
    """The approver when nobody can be asked: deny."""

    reason: str = "nobody is there to approve it"

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Deny, and say why."""
        return Approval(Decision.DENY, self.reason)


def nothing_said() -> Sequence[UserMessage]:
    """Nobody says anything to a run while it goes on."""
    return ()


class Ports(Struct, frozen=True):
    """What a run is given. There is no default policy: a run without rules must say so."""

    provider: Provider
    executor: Executor
    policy: Policy
    approver: Approver = NobodyThere()
    principal: Principal = LOCAL
    sinks: tuple[Sink, ...] = ()
    """Who listens to every run that is given these, beside whoever the caller adds."""
    steering: Callable[[], Sequence[UserMessage]] = nothing_said
    """What people said to the run since it was last asked; each message is given once."""
