"""What the core tests share: an executor over plain functions, and short ways to run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import CallFinished, Event, RunFinished
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, Message, ToolResult, user
from evoclaw.core.ports import (
    ALLOW,
    AllowAll,
    Approver,
    Deny,
    Executor,
    NoApprover,
    Policy,
    Ports,
    Progress,
    Provider,
    Verdict,
)
from evoclaw.core.state import RunState, new_run
from evoclaw.core.tools import Call, Effect, Tool

Body = Callable[[Call, Progress], Awaitable[str]]


def tool(name: str, *required: str, **settings: JSON) -> Tool:
    return Tool(
        name,
        f"The {name} tool.",
        {
            "type": "object",
            "properties": {key: {"type": "string"} for key in required},
            "required": list(required),
        },
        **settings,
    )


async def echo(call: Call, progress: Progress) -> str:
    return f"{call.name}({call.arguments.get('text', '')})"


async def fail(call: Call, progress: Progress) -> str:
    raise ToolFailure(ErrorKind.EXECUTION_FAILED, "it did not work")


class Gate:
    """A tool that waits until it is let through, and knows how many are inside."""

    def __init__(self, wanted: int) -> None:
        self.inside = self.peak = 0
        self._wanted = wanted
        self._full = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, call: Call, progress: Progress) -> str:
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        if self.inside == self._wanted:
            self._full.set()
        try:
            await self._full.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return "through"


class Table:
    """An executor over functions."""

    def __init__(self, *entries: tuple[Tool, Body]) -> None:
        self._tools = tuple(entry for entry, _ in entries)
        self._bodies = {entry.name: body for entry, body in entries}
        self.started: list[Call] = []

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        self.started.append(call)
        return call.ok(await self._bodies[call.name](call, progress))


def echo_table(*names: str) -> Table:
    entries = [(tool(n, effect=Effect.READ, resources=()), echo) for n in names or ("echo",)]
    return Table(*entries)


@dataclass
class DenyingPolicy:
    """Deny calls by name; count how often it was asked."""

    names: frozenset[str] = frozenset()
    judged: list[Call] = field(default_factory=list[Call])
    turns: int = 1_000

    async def judge(self, call: Call) -> Verdict:
        self.judged.append(call)
        return Deny("no", "not allowed here") if call.name in self.names else ALLOW

    async def admit(self, turn: int) -> Verdict:
        return ALLOW if turn <= self.turns else Deny("budget", "", "no turns left in the budget")


@dataclass
class FinishedRun:
    """A run that ended."""

    events: list[Event]
    state: RunState

    @property
    def end(self) -> RunFinished:
        last = self.events[-1]
        assert isinstance(last, RunFinished)
        return last

    @property
    def results(self) -> list[ToolResult]:
        return [event.result for event in self.events if isinstance(event, CallFinished)]

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


async def run(
    provider: Provider,
    executor: Executor | None = None,
    *,
    policy: Policy | None = None,
    approver: Approver | None = None,
    settings: LoopSettings = LoopSettings(),
    messages: Sequence[Message] = (user("do it"),),
    state: RunState | None = None,
    deadline: Deadline | None = None,
) -> FinishedRun:
    state = state or new_run(messages, "run")
    ports = Ports(
        provider, executor or echo_table(), policy or AllowAll(), approver or NoApprover()
    )
    async with asyncio.timeout(30):
        events = [event async for event in run_loop(state, ports, settings, deadline)]
    return FinishedRun(events, state)
