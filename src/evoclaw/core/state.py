"""The state of a run: a fold over its events.

The loop and a restart use the same fold, so a run that stopped at any point resumes seamlessly.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    ContextTrimmed,
    Event,
    Prompted,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TurnStarted,
)
from evoclaw.core.history import History
from evoclaw.core.messages import (
    JSON,
    ErrorKind,
    Message,
    Reply,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from evoclaw.core.reported_usage import with_nested_usage
from evoclaw.core.window import trimmed_view

CallKey: TypeAlias = tuple[str, str]
_NO_USAGE = Usage()
_NEUTRAL_ERRORS = (ErrorKind.CANCELLED, ErrorKind.QUEUE_FULL)
"""Errors that do not count as a failure of the turn."""


class RunState(Struct):
    """The state of a run. Only `apply` changes it."""

    run_id: str
    opening: tuple[Message, ...] = ()
    """The messages it starts with."""
    history: History = field(default_factory=History)
    """All messages."""
    window: History = field(default_factory=History)
    """What the model is shown: the history itself, until it is trimmed."""
    trimmed: ContextTrimmed | None = None
    task: int = -1
    """The index of the user's task in the history; it is never trimmed."""
    started: bool = False
    epoch: int = 1
    """How often the run was started or resumed."""
    stop: StopReason | None = None
    turn: int = 0
    """Replies so far."""
    open_reply: Reply | None = None
    """The reply whose calls are being answered."""
    answers: dict[str, ToolResult] = {}
    """The results of its calls so far; they enter the history together, in the calls' order."""
    running: set[str] = set()
    """Calls that were started and have no result yet; after a crash their outcome is unknown."""
    pending: dict[str, str] = {}
    """Calls that wait for an approval, with the reason."""
    edited: dict[str, dict[str, JSON]] = {}
    """The arguments of calls that a person edited and so approved."""
    denied_now: set[str] = set()
    denied: dict[CallKey, int] = {}
    """How often each call was denied in total."""
    repeated: int = 0
    """How often the last set of calls was repeated in a row."""
    last_calls: list[CallKey] = []
    failed_turns: int = 0
    confirms: int = 0
    confirming: bool = False
    closing: bool = False
    calls: int = 0
    tools_used: dict[str, None] = {}
    usage: Usage = Usage()
    cost: float | None = 0.0
    call_ids: set[str] = set()
    """All call ids so far; some servers reject a history with a repeated id."""
    sent_chars: int = 0
    chars_per_token: float = 4.0
    last_error: str = ""

    @property
    def unanswered(self) -> tuple[tuple[int, ToolCall], ...]:
        """The calls of the last reply that have no result yet, with their index."""
        if self.open_reply is None:
            return ()
        calls, answers = enumerate(self.open_reply.calls), self.answers
        if not answers:
            return tuple(calls)
        return tuple([(i, call) for i, call in calls if call.id not in answers])

    @property
    def last(self) -> Message | None:
        """The newest message."""
        return self.history[-1] if len(self.history) else None

    def apply(self, event: Event) -> None:
        """Update the state by one event."""
        apply = _APPLY.get(type(event))
        if apply is not None:
            apply(self, event)


class PreparedRun(Struct, frozen=True):
    """A run that is ready to be started or resumed."""

    state: RunState
    records: Sequence[Record] = ()
    """The records so far, if it is resumed."""
    attended: bool = False
    """Whether a person can answer approvals, now or later."""
    quarantine: bool = False
    """Whether the model sees untrusted text only as handles."""


def new_run(messages: Iterable[Message], run_id: str | None = None) -> RunState:
    """Create a run with these messages; the last user message is the task.

    If the messages end in a reply with calls that have no result, these calls run first.
    """
    return RunState(run_id or secrets.token_hex(16), opening=tuple(messages))


def fold(records: Iterable[Record]) -> RunState:
    """The state of a run at the end of its records."""
    state: RunState | None = None
    for record in records:
        if state is None:
            state = RunState(record.run_id)
        elif record.run_id != state.run_id:
            raise RecordingError(f"the records are of two runs: {state.run_id} and {record.run_id}")
        state.apply(record.event)
    if state is None:
        raise RecordingError("there are no records")
    return state


def _run_started(state: RunState, event: RunStarted) -> None:
    state.started = True
    state.opening = event.messages
    messages, trailing = _split_open_turn(event.messages)
    state.history = state.window = History(messages)
    for index, message in enumerate(messages):
        if isinstance(message, UserMessage):
            state.task = index
        elif isinstance(message, Reply):
            state.call_ids.update(call.id for call in message.calls)
    last = state.last
    if isinstance(last, Reply) and last.calls:
        state.open_reply = last
        for result in trailing:
            _record_answer(state, result)


def _split_open_turn(
    messages: tuple[Message, ...],
) -> tuple[tuple[Message, ...], tuple[ToolResult, ...]]:
    """Separate the results of a last turn in which some calls have no result."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ToolResult):
        end -= 1
    reply = messages[end - 1] if end else None
    results = tuple(m for m in messages[end:] if isinstance(m, ToolResult))
    if isinstance(reply, Reply) and len(results) < len(reply.calls):
        return messages[:end], results
    return messages, ()


def _run_resumed(state: RunState, event: RunResumed) -> None:
    state.stop = None
    state.epoch += 1
    state.pending.clear()


def _turn_started(state: RunState, event: TurnStarted) -> None:
    state.sent_chars = event.chars


def _replied(state: RunState, event: Replied) -> None:
    reply = event.reply
    state.turn += 1
    if reply.usage.input and state.sent_chars:
        # The server's count corrects our estimate; the bounds limit the effect of a wrong count.
        ratio = state.sent_chars / reply.usage.input
        state.chars_per_token = 1.0 if ratio < 1.0 else 6.0 if ratio > 6.0 else ratio
    _spend(state, reply.usage, reply.cost)
    _append(state, reply)
    if not reply.calls:
        return
    state.open_reply = reply
    state.confirming = False
    keys: list[CallKey] = []
    for call in reply.calls:
        state.call_ids.add(call.id)
        keys.append((call.name, call.arguments))
    keys.sort()
    state.repeated = state.repeated + 1 if keys == state.last_calls else 1
    state.last_calls = keys


def _reply_failed(state: RunState, event: ReplyFailed) -> None:
    _spend(state, event.usage, None)


def _call_judged(state: RunState, event: CallJudged) -> None:
    if event.verdict == "deny":
        _deny(state, event.call_id)


def _approval_answered(state: RunState, event: ApprovalAnswered) -> None:
    if event.decision == "deny":
        _deny(state, event.call_id)
    elif event.decision == "pending":
        state.pending[event.call_id] = event.reason
    elif event.arguments is not None:
        state.edited[event.call_id] = event.arguments


def _deny(state: RunState, call_id: str) -> None:
    state.denied_now.add(call_id)
    for call in state.open_reply.calls if state.open_reply else ():
        if call.id == call_id:
            key = (call.name, call.arguments)
            state.denied[key] = state.denied.get(key, 0) + 1


def _call_started(state: RunState, event: CallStarted) -> None:
    state.calls += event.call_id not in state.running  # a resumed run starts the same call again
    state.running.add(event.call_id)
    state.tools_used[event.name] = None


def _call_finished(state: RunState, event: CallFinished) -> None:
    _record_answer(state, event.result)


def _record_answer(state: RunState, result: ToolResult) -> None:
    reply = state.open_reply
    if reply is None or result.call_id in state.answers:
        return  # a late or second result never changes a closed turn
    state.answers[result.call_id] = result
    state.running.discard(result.call_id)
    if (used := with_nested_usage(result.details)) is not None:
        _spend(state, *used)
    if len(state.answers) < len(reply.calls):
        return
    worked = failed = False
    for call in reply.calls:
        answer = state.answers[call.id]
        _append(state, answer)
        if answer.error is None:
            worked = True
        elif call.id not in state.denied_now and answer.error not in _NEUTRAL_ERRORS:
            failed = True
            state.last_error = answer.text
    if worked:
        state.failed_turns = 0
    elif failed:
        state.failed_turns += 1
    state.open_reply = None
    state.answers = {}
    state.denied_now.clear()


def _prompted(state: RunState, event: Prompted) -> None:
    _append(state, event.message)
    state.confirming = event.why == "confirm"
    state.confirms += event.why == "confirm"
    state.closing = state.closing or event.why == "closing"


def _context_trimmed(state: RunState, event: ContextTrimmed) -> None:
    _spend(state, event.usage, event.cost)
    state.trimmed = event
    state.window = trimmed_view(state.history, event, state.task)


def _run_finished(state: RunState, event: RunFinished) -> None:
    state.stop = event.stop


def _append(state: RunState, message: Message) -> None:
    state.history.append(message)
    if state.window is not state.history:
        state.window.append(message)


def _spend(state: RunState, usage: Usage, cost: float | None) -> None:
    if usage != _NO_USAGE:
        state.usage += usage
        # A reply without a price makes the sum unknown: never report less than was spent.
        state.cost = None if cost is None or state.cost is None else state.cost + cost


_APPLY: Mapping[type, Callable[[RunState, Any], None]] = {
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    TurnStarted: _turn_started,
    Replied: _replied,
    ReplyFailed: _reply_failed,
    CallJudged: _call_judged,
    ApprovalAnswered: _approval_answered,
    CallStarted: _call_started,
    CallFinished: _call_finished,
    Prompted: _prompted,
    ContextTrimmed: _context_trimmed,
    RunFinished: _run_finished,
}
