"""Replay a recorded run offline: the real loop, with the recorded inputs.

The model's replies, the tools' results, verdicts and approvals come from the records; everything
else is computed again. If the records are the same, byte for byte, the loop depends on nothing that
was not recorded: `verify_replay` checks this for a recorded run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, RecordingError, RunEnded
from evoclaw.core.events import (
    ApprovalAnswered,
    CallDelayed,
    CallFinished,
    CallJudged,
    CallOutput,
    CallStarted,
    ContextTrimmed,
    Event,
    Prompted,
    ReasoningDelta,
    Record,
    Replied,
    ReplyEvent,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TextDelta,
    ToolsChanged,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ErrorKind, Reply, ToolResult, UserMessage
from evoclaw.core.ports import (
    ALLOW,
    Approval,
    Ask,
    Decision,
    Delay,
    Deny,
    Ports,
    Progress,
    Request,
    Verdict,
)
from evoclaw.core.profile import Profile
from evoclaw.core.run import Bus
from evoclaw.core.state import RunState
from evoclaw.core.tools import Call, Tool


@dataclass(slots=True)
class _RecordedCall:
    output: list[str] = field(default_factory=list[str])
    result: ToolResult | None = None
    """None if the process died before the call ended."""


class Replay:
    """Replays one recorded run as its provider, executor, policy and approver."""

    def __init__(self, records: Sequence[Record]) -> None:
        if not records or not isinstance(records[0].event, RunStarted):
            raise RecordingError("the recording does not start with run_started")
        self._events = [record.event for record in records]
        self._records = records
        self._at = 0
        self._segment_at = 0
        """Where the current segment begins."""
        self._segments = 0
        """How many starts and resumptions were replayed so far."""
        self._opening: RunStarted | RunResumed = records[0].event
        self._messages = records[0].event.messages
        self._tools: Sequence[Tool] = ()
        self._started = {e.call_id for e in self._events if isinstance(e, CallStarted)}
        self._runs = _recorded_calls(self._events)
        self._finished = {
            event.result.call_id: event.result
            for event in self._events
            if isinstance(event, CallFinished)
        }

    async def records(self) -> AsyncGenerator[Record, None]:
        """Replay the run; raise `RecordingError` at the first record that differs."""
        state = RunState(self._records[0].run_id, opening=self._messages)
        bus = Bus(state.run_id, clock=lambda: self._records[self._at].at)
        while (opening := self._next) is not None:
            if not isinstance(opening, RunStarted | RunResumed):
                raise RecordingError(f"record {self._at + 1} comes after the end of the run")
            self._opening, self._segment_at = opening, self._at
            self._segments += 1
            bus.seq = self._records[self._at].seq - 1  # an interrupted run may skip numbers
            async with aclosing(self._segment(state)) as events:
                async for event in events:
                    record = bus.publish(event)
                    self._at += 1
                    yield record

    async def _segment(self, state: RunState) -> AsyncGenerator[Event, None]:
        """Replay from one start or resumption to the next, or to the end of the records."""
        deadline = Deadline()
        ports = Ports(self, self, self, self, steering=self._steering)
        buffered: list[Event] = []
        async with aclosing(run_loop(state, ports, self._opening.settings, deadline)) as events:
            async for event in events:
                buffered.append(event)
                # Events of concurrent calls may come in any order; yield them as recorded.
                while self._next in buffered:
                    expected = self._events[self._at]
                    buffered.remove(expected)
                    yield expected
                    self._interrupt_when_due(deadline)
                if buffered and not _may_be_early(buffered[-1]):
                    raise self._mismatch(buffered[0])
                if self._next is None or isinstance(self._next, RunResumed):
                    break
        if buffered:
            raise self._mismatch(buffered[0])

    def _interrupt_when_due(self, deadline: Deadline) -> None:
        """End the run from outside exactly where the recorded run was ended."""
        last = self._events[-1]
        ending = self._next
        if isinstance(ending, RunFinished):
            if ending.stop is StopReason.CANCELLED and ending.reason:
                return  # a policy refused the turn, such as an emergency stop: see `admit`
            last = ending
        elif not (isinstance(ending, CallFinished) and self._only_open_calls_left()):
            return
        if isinstance(last, RunFinished) and last.stop is StopReason.CANCELLED:
            deadline.cancel()
        elif isinstance(last, RunFinished) and last.stop is StopReason.DURATION_EXCEEDED:
            deadline.expire()

    def _only_open_calls_left(self) -> bool:
        """Whether only calls that were not started since the last opening are left."""
        rest, here = self._events[self._at : -1], self._events[self._segment_at : self._at]
        started_here = {e.call_id for e in here if isinstance(e, CallStarted)}
        return isinstance(self._events[-1], RunFinished) and all(
            isinstance(e, CallFinished)
            and e.result.call_id not in started_here
            # One that was started before has an unknown outcome.
            and e.result.error
            is (ErrorKind.UNKNOWN if e.result.call_id in self._started else ErrorKind.CANCELLED)
            for e in rest
        )

    @property
    def _next(self) -> Event | None:
        return self._events[self._at] if self._at < len(self._events) else None

    def _mismatch(self, event: Event) -> RecordingError:
        expected = type(self._next).__name__ if self._next is not None else "the end"
        return RecordingError(
            f"record {self._at + 1} does not replay: expected {expected}, got {event!r:.300}"
        )

    @property
    def model(self) -> str:
        """The recorded model's name."""
        return self._opening.model

    @property
    def profile(self) -> Profile:
        """The recorded model's profile."""
        return self._opening.profile

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Yield the recorded reply."""
        if isinstance(summary := self._next, ContextTrimmed):
            yield Replied(Reply(summary.summary, usage=summary.usage, cost=summary.cost))
            return
        while True:
            match self._next:
                case ReplyRetried(kind, reason) if kind == ProviderErrorKind.CONTEXT_TOO_LONG:
                    raise ProviderError(ProviderErrorKind.CONTEXT_TOO_LONG, reason)
                case TextDelta() | ReasoningDelta() | ReplyRetried() | Replied() as event:
                    yield event
                case ReplyFailed(kind, reason, usage):
                    raise ProviderError(ProviderErrorKind(kind), reason, usage=usage)
                case _:
                    # Interrupted here: the interruption comes from outside.
                    await asyncio.Event().wait()

    def tools(self) -> Sequence[Tool]:
        """The tools that were available at this point."""
        if isinstance(changed := self._next, ToolsChanged):
            # A new object, also if the store has two equal lists once: the loop compares identity.
            self._tools = list(changed.tools)
        return self._tools

    def _steering(self) -> Sequence[UserMessage]:
        """The steering messages at this point."""
        messages: list[UserMessage] = []
        for event in self._events[self._at :]:
            if not (isinstance(event, Prompted) and event.why == "steer"):
                break
            messages.append(event.message)
        return messages

    async def machine_of(self, call: Call) -> str:
        """The machine that the call was judged for."""
        match self._next:
            case CallJudged(call.id, machine=machine):
                return machine
            case _:
                return ""

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Return the recorded result."""
        run = self._runs[self._segments - 1].get(call.id, _RecordedCall())
        for text in run.output:
            progress(text)
        if run.result is None:
            await asyncio.Event().wait()
        assert run.result is not None
        return run.result

    async def judge(self, call: Call) -> Verdict:
        """Return the recorded verdict."""
        match self._next:
            case CallJudged(call.id, "deny", code, reason):
                result = self._finished.get(call.id)
                return Deny(code, result.text if result else reason, reason)
            case CallJudged(call.id, "ask", code, reason):
                return Ask(code, reason)
            case _:
                return ALLOW

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Return the recorded approval."""
        match self._next:
            case ApprovalAnswered(call.id, decision, reason, arguments):
                return Approval(Decision(decision), reason, arguments)
            case _:
                return Approval(Decision.DENY, "the recording has no answer")

    async def admit(self, turn: int) -> Verdict:
        """Admit a turn if the recorded run had one."""
        match self._next:
            case RunFinished(stop, reason=reason):
                raise RunEnded(stop, reason)
            case _:
                return ALLOW


def _recorded_calls(events: Sequence[Event]) -> list[dict[str, _RecordedCall]]:
    """The output and result of each call, for each start or resumption of the run."""
    segments: list[dict[str, _RecordedCall]] = []
    for event in events:
        match event:
            case RunStarted() | RunResumed():
                segments.append({})
            case CallStarted(call_id):
                segments[-1][call_id] = _RecordedCall()
            case CallOutput(call_id, text):
                segments[-1].setdefault(call_id, _RecordedCall()).output.append(text)
            case CallDelayed(call_id, machine, seconds):
                delay = Delay(machine, seconds)
                segments[-1].setdefault(call_id, _RecordedCall()).output.append(delay)
            case CallFinished(result):
                segments[-1].setdefault(result.call_id, _RecordedCall()).result = result
            case _:
                pass
    return segments


def _may_be_early(event: Event) -> bool:
    """Whether an event may come before its recorded position: those of concurrent calls."""
    return isinstance(event, CallStarted | CallOutput | CallDelayed | CallFinished)


REPLAY_STALL_TIMEOUT_S = 10.0
"""Seconds to wait for the next record: an altered recording may block the loop forever."""


class ReplayResult(Struct, frozen=True):
    """The outcome of replaying a run."""

    same: bool
    """Whether every record is the same."""
    records: int
    """How many records were the same."""
    differs_at: int | None = None
    """The number of the first record that differs."""
    reason: str = ""
    """Why it differs, for people."""


async def replay_exactly(records: Sequence[Record]) -> AsyncGenerator[Record, None]:
    """Replay a run; raise `RecordingError` at the first record that is not the same to the byte."""
    count = 0
    async with aclosing(Replay(records).records()) as played:
        async for record in played:
            if msgspec.json.encode(record) != msgspec.json.encode(records[count]):
                raise RecordingError(f"record {count + 1} differs from the recording")
            count += 1
            yield record


async def verify_replay(
    records: Sequence[Record], stall: float = REPLAY_STALL_TIMEOUT_S
) -> ReplayResult:
    """Replay a run to its end and compare it; other tasks may run between two records.

    Args:
        records: The records of the run, numbered without gaps.
        stall: Seconds to wait for each record.
    """
    count, loop = 0, asyncio.get_running_loop()
    try:
        async with asyncio.timeout(stall) as timeout, aclosing(replay_exactly(records)) as played:
            async for _ in played:
                count += 1
                await asyncio.sleep(0)
                timeout.reschedule(loop.time() + stall)
    except RecordingError as problem:
        return ReplayResult(False, count, count + 1, str(problem))
    except TimeoutError:
        return ReplayResult(
            False, count, count + 1, f"the replay stalled before record {count + 1}"
        )
    return ReplayResult(True, count)
