"""The five ports: everything that the loop needs from outside `core`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from evoclaw.core.events import Record, ReplyEvent
from evoclaw.core.history import History
from evoclaw.core.labels import LOCAL_PRINCIPAL, Principal
from evoclaw.core.messages import JSON, ToolResult, UserMessage
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Call, Tool
from evoclaw.core.wording import machine_offline, machine_online


class Request(Struct, frozen=True):
    """One request to a model."""

    history: History
    tools: Sequence[Tool] = ()
    offer_tools: bool = True
    """False asks for a closing reply: the tools are in the history, but may not be called."""
    temperature: float | None = None
    max_tokens: int | None = None
    must_call: bool = False
    """The reply must call one of the tools; ignored by a provider that cannot force it."""
    stop: tuple[str, ...] = ()
    """Texts that end the reply where they would appear."""
    tool_prompt: str = ""
    """What tells a model without native calls its tools, with the placeholders of a genome's
    `tool_prompt`; empty: the provider's own text."""
    max_retries: int | UnsetType = UNSET
    """How often it is repeated if it fails; unset, or above that: as often as the provider does."""


class Provider(Protocol):
    """Serves a model."""

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

        Raise `ProviderError` if there is no reply. A stream that fails never yields a partial
        call. Closing the iterator early ends the request.
        """
        ...


Progress: TypeAlias = Callable[[str], None]
"""Receives a piece of a running call's output, or a `Delay`."""


class Delay(str):
    """Reported instead of output: the machine of the call is offline, or online again.

    It is a text, so that a receiver that does not know it shows it as output.
    """

    __slots__ = ("machine", "seconds")
    machine: str
    seconds: float
    """For how much longer the call waits; 0: the machine is online again."""

    def __new__(cls, machine: str, seconds: float) -> Delay:
        """Word the delay."""
        text = machine_offline(machine, seconds) if seconds else machine_online(machine)
        made = super().__new__(cls, f"{text}\n")
        made.machine, made.seconds = machine, seconds
        return made


class Executor(Protocol):
    """Runs calls."""

    def tools(self) -> Sequence[Tool]:
        """The tools that are available now; the same object while nothing changed."""
        ...

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to its end. Raise `ToolFailure` to report a failure to the model.

        When cancelled, leave nothing running.
        """
        ...


def locator(executor: Executor) -> Callable[[Call], Coroutine[Any, Any, str]] | None:
    """How an executor says on which machine a call will run; None if it runs calls here.

    Looked up by name: the check of a Protocol costs as much as the rest of a short turn.
    """
    return getattr(executor, "machine_of", None)


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
    """For people, if they should read another text."""


class Ask(Struct, frozen=True, tag="ask"):
    """A person must approve the call."""

    code: str
    reason: str
    """For the model if there is no approver; also for people, unless `for_people` is set."""
    for_people: str = ""


Verdict: TypeAlias = Allow | Deny | Ask
ALLOW = Allow()


class Policy(Protocol):
    """Decides whether a call may run, and whether a run may continue."""

    async def judge(self, call: Call) -> Verdict:
        """Judge one call. Called in the order of the calls, before any call of the turn starts."""
        ...

    async def admit(self, turn: int) -> Verdict:
        """Judge whether the run may have another turn.

        A `Deny` ends the run: `budget_exceeded` if its code begins with `budget`, else `cancelled`.
        """
        return ALLOW


class Decision(StrEnum):
    """A person's answer to an `Ask`."""

    ONCE = "once"
    SESSION = "session"
    DENY = "deny"
    PENDING = "pending"
    """No answer yet: the run stops as `waiting`."""


class Approval(Struct, frozen=True, omit_defaults=True):
    """The answer of an approver."""

    decision: Decision
    reason: str = ""
    arguments: dict[str, JSON] | None = None
    """With `once`: the person edited the call, and it runs with these arguments."""


class Approver(Protocol):
    """Asks a person when a policy returns `Ask`."""

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Return the answer, or `PENDING`."""
        ...


class Sink(Protocol):
    """Receives the records of runs."""

    def receive(self, record: Record) -> None:
        """Receive one record. Called in order; must return quickly."""
        ...


@dataclass(frozen=True, slots=True)
class AllowAll:
    """A policy that allows everything: only for tests and fully trusted tools."""

    async def judge(self, call: Call) -> Verdict:
        """Allow."""
        return ALLOW

    async def admit(self, turn: int) -> Verdict:
        """Allow."""
        return ALLOW


@dataclass(frozen=True, slots=True)
class NoApprover:
    """The approver of a run without one: it denies."""

    reason: str = "no one is available to approve it"

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Deny, with the reason."""
        return Approval(Decision.DENY, self.reason)


def no_steering() -> Sequence[UserMessage]:
    """The steering of a run that cannot be steered: no messages."""
    return ()


class Ports(Struct, frozen=True):
    """The dependencies of a run. There is no default policy: pass `AllowAll` for none."""

    provider: Provider
    executor: Executor
    policy: Policy
    approver: Approver = NoApprover()
    principal: Principal = LOCAL_PRINCIPAL
    sinks: tuple[Sink, ...] = ()
    """The sinks of every run with these ports, in addition to those that the caller adds."""
    steering: Callable[[], Sequence[UserMessage]] = no_steering
    """The steering messages since the last call; each message is returned once."""
