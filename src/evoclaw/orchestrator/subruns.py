"""A session's run: kept as it happens, never wider than the run above, out of one purse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus, recorded
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import (
    CallOutput,
    ContextTrimmed,
    ReasoningDelta,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    StopReason,
    TextDelta,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, Usage
from evoclaw.core.ports import ALLOW, Deny, Executor, Policy, Ports, Progress, Sink, Verdict
from evoclaw.core.state import RunState
from evoclaw.core.tools import ALL, Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import tool_not_found
from evoclaw.store.sessions import Session, SessionStore, Spent, StoredRun

GRACE = 5.0
"""Seconds that a sub-run has to say how far it came when it is cancelled."""
PASSING = TextDelta | ReasoningDelta | CallOutput
"""Records that are kept together with the next one that matters."""


class Limits(Struct, frozen=True):
    """What a run and all its sub-runs may use together."""

    turns: int = 100
    calls: int = 200
    tokens: int | None = None
    cost: float | None = None
    """In US dollars. With it, a model without a known price gets one reply and no more."""
    depth: int = 3
    """How many sub-runs may stand one above the other."""
    side_by_side: int = 4
    """Sub-runs of one run that go on at once; the others wait for their turn."""
    at_once: int = 16
    """Sub-runs of all together; more are refused."""


class Purse(Policy):
    """What is left for a run and all its sub-runs: shared, never copied. Also a sink."""

    def __init__(self, limits: Limits, spent: Spent) -> None:
        """Begin with what was spent before a restart."""
        self.limits = limits
        self.under_way = 0
        """Sub-runs that were begun and have not ended."""
        self._turns, self._tokens = spent.turns, spent.tokens_in + spent.tokens_out
        self._calls_before, self._calls = spent.calls, set[str]()
        self._cost = spent.cost

    async def judge(self, call: Call) -> Verdict:
        """Count a call, once for all its attempts to be judged."""
        if call.request_id not in self._calls:
            if self._calls_before + len(self._calls) >= self.limits.calls:
                return Deny("budget", f"{_used('calls')}. Answer with what you have.")
            self._calls.add(call.request_id)
        return ALLOW

    async def admit(self, turn: int) -> Verdict:
        """Count a turn before it is taken, so that runs side by side cannot take one too many."""
        limits = self.limits
        if self._turns >= limits.turns:
            return Deny("budget", _used("turns"))
        if limits.tokens is not None and self._tokens >= limits.tokens:
            return Deny("budget", _used("tokens"))
        if limits.cost is not None and self._cost is None:
            return Deny("budget", "a reply had no known price, so what is left is not known")
        if limits.cost is not None and self._cost is not None and self._cost >= limits.cost:
            return Deny("budget", _used("money"))
        self._turns += 1
        return ALLOW

    def receive(self, record: Record) -> None:
        """Count what a reply took."""
        match record.event:
            case Replied(reply):
                self._spend(reply.usage, reply.cost)
            case ReplyFailed(usage=usage):
                self._spend(usage, None)
            case ContextTrimmed(usage=usage, cost=cost):
                self._spend(usage, cost)
            case _:
                pass

    def _spend(self, usage: Usage, cost: float | None) -> None:
        if usage != Usage():
            self._tokens += usage.input + usage.output
            self._cost = None if cost is None or self._cost is None else self._cost + cost

    @property
    def turns_left(self) -> int:
        """Turns that may still be taken."""
        return max(0, self.limits.turns - self._turns)

    def left(self) -> dict[str, JSON]:
        """What may still be spent, of what is bounded."""
        limits = self.limits
        calls = limits.calls - self._calls_before - len(self._calls)
        found: dict[str, JSON] = {"turns": self.turns_left, "calls": max(0, calls)}
        if limits.tokens is not None:
            found["tokens"] = max(0, limits.tokens - self._tokens)
        if limits.cost is not None and self._cost is not None:
            found["dollars"] = round(max(0.0, limits.cost - self._cost), 6)
        return found


@dataclass(frozen=True, slots=True)
class Allowance(Policy):
    """What one run may take of the purse: it leaves a turn to each run above it, to answer with."""

    purse: Purse
    above: int
    """How many runs stand above."""

    async def judge(self, call: Call) -> Verdict:
        """Count a call."""
        return await self.purse.judge(call)

    async def admit(self, turn: int) -> Verdict:
        """Count a turn."""
        if self.purse.turns_left <= self.above:
            return Deny("budget", _used("turns"))
        return await self.purse.admit(turn)


def _used(what: str) -> str:
    return f"the {what} that this run and its sub-runs have together are used up"


def narrowed(wanted: frozenset[str], held: frozenset[str]) -> frozenset[str]:
    """Of the capabilities wanted, those that are held."""
    if ALL in held:
        return wanted
    return held if ALL in wanted else wanted & held


class Within:
    """Offers and runs only tools that the run above may use too, and of them the named ones."""

    def __init__(
        self,
        inner: Executor,
        above: Executor | None,
        names: frozenset[str] | None,
        besides: frozenset[str] = frozenset(),
    ) -> None:
        """Narrow an executor; `besides` are never offered."""
        self._inner, self._above, self._names, self._besides = inner, above, names, besides
        self._seen: tuple[Sequence[Tool], Sequence[Tool] | None] | None = None
        self._tools = Toolset()

    def tools(self) -> Sequence[Tool]:
        """What is left; the same object while nothing changed."""
        inner = self._inner.tools()
        above = None if self._above is None else self._above.tools()
        if self._seen is None or self._seen[0] is not inner or self._seen[1] is not above:
            held = None if above is None else {tool.name for tool in above}
            left = [tool for tool in inner if self._may(tool.name, held)]
            self._tools = Toolset(left, like=inner)
            self._seen = inner, above
        return self._tools

    def _may(self, name: str, held: set[str] | None) -> bool:
        named = self._names is None or name in self._names
        return named and name not in self._besides and (held is None or name in held)

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on if it may be used."""
        names = [tool.name for tool in self.tools()]
        if call.name not in names:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, names))
        return await self._inner.execute(call, progress)


@dataclass(eq=False, slots=True)
class Child:
    """A sub-run that goes on beside the run that began it."""

    run_id: str
    session_id: str
    deadline: Deadline
    task: asyncio.Task[None]

    async def end(self, *, clean: bool) -> None:
        """Leave nothing running.

        Args:
            clean: It is cancelled, and its records say so; else it is cut off where it is, to be
                gone on with by whoever resumes the run above.
        """
        if clean:
            self.deadline.cancel()
            await asyncio.wait([self.task], timeout=GRACE)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


@dataclass(eq=False, slots=True)
class LiveRun:
    """A run of a session in this process."""

    store: SessionStore
    session: Session
    stored: StoredRun
    state: RunState
    settings: LoopSettings
    deadline: Deadline
    purse: Purse
    capabilities: frozenset[str]
    places: asyncio.Semaphore
    seq: int = 0
    """Records that are kept already."""
    known: int = 0
    """Messages that are kept already."""
    children: list[Child] = field(default_factory=list[Child])
    ports: Ports = field(init=False)
    """Given last: its tools are handed this run."""
    rules: tuple[Policy, ...] = ()
    """What judges it; judges its sub-runs too."""

    async def records(self, sinks: Sequence[Sink] = ()) -> AsyncGenerator[Record, None]:
        """Run, or go on; each record that matters is on the disk before the next thing happens."""
        bus = Bus(self.stored.id, (self.purse, *sinks), seq=self.seq)
        events = run_loop(self.state, self.ports, self.settings, self.deadline)
        held: list[Record] = []
        stop: StopReason | None = None
        try:
            async with aclosing(recorded(events, bus)) as records:
                async for record in records:
                    held.append(record)
                    if isinstance(record.event, RunFinished):
                        stop = record.event.stop
                    if not isinstance(record.event, PASSING):
                        await self._keep(held, stop)
                        held = []
                    yield record
        finally:
            clean = stop is not None and stop is not StopReason.WAITING
            await self._end_children(clean=clean)

    async def _keep(self, records: Sequence[Record], stop: StopReason | None) -> None:
        state = self.state
        history = state.history
        messages = [(number, history[number]) for number in range(self.known, len(history))]
        usage = state.usage
        spent = Spent(state.turn, state.calls, usage.input, usage.output, state.cost)
        await self.store.append(self.stored, records, messages, spent, stop)
        self.known = len(history)
        if stop is not None and stop is not StopReason.WAITING:
            await self.store.questions.give_up(self.stored.id)

    async def _end_children(self, *, clean: bool) -> None:
        running = [child for child in self.children if not child.task.done()]
        await asyncio.gather(*(child.end(clean=clean) for child in running))
