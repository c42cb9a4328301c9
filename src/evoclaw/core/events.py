"""The facts of a run, one frozen class each, and the record that stamps them.

Events carry no clock: replaying a run gives the same events; only the record's `at` differs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.messages import JSON, Message, Reply, ToolResult, Usage, UserMessage
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool


class StopReason(StrEnum):
    """Why a run ended."""

    COMPLETED = "completed"
    MAX_ITERATIONS = "max_iterations"
    ERROR = "error"
    BUDGET_EXCEEDED = "budget_exceeded"
    DURATION_EXCEEDED = "duration_exceeded"
    LOOP_DETECTED = "loop_detected"
    CANCELLED = "cancelled"
    WAITING = "waiting"
    """For a person or the caller; the run resumes later."""


class RunStarted(Struct, frozen=True, gc=False, tag="run_started"):
    """A run started with these messages, under these limits."""

    model: str
    messages: tuple[Message, ...]
    settings: LoopSettings
    profile: Profile


class RunResumed(Struct, frozen=True, gc=False, tag="run_resumed"):
    """A run that was stopped or interrupted continues where its records end."""

    model: str
    settings: LoopSettings
    profile: Profile


class ToolsChanged(Struct, frozen=True, gc=False, tag="tools_changed"):
    """The tools that are available: at the start, and whenever they change."""

    tools: tuple[Tool, ...]


class TurnStarted(Struct, frozen=True, gc=False, omit_defaults=True, tag="turn_started"):
    """The model is asked for a reply."""

    turn: int
    offer_tools: bool = True
    """False for a closing reply, or if there are no tools."""
    chars: int = 0
    """Characters sent; compared with the server's token count, they correct the estimate."""


class TextDelta(Struct, frozen=True, gc=False, tag="text_delta"):
    """A piece of the reply's text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag="reasoning_delta"):
    """A piece of the model's reasoning."""

    text: str


class ReplyRetried(Struct, frozen=True, gc=False, tag="reply_retried"):
    """The request for a reply failed and is retried; the deltas of the reply so far are void."""

    kind: str
    reason: str
    attempt: int
    wait: float


class ReplyFailed(Struct, frozen=True, gc=False, omit_defaults=True, tag="reply_failed"):
    """The model gave no reply; the tokens of the failed attempts are spent all the same."""

    kind: str
    reason: str
    usage: Usage = Usage()


class Replied(Struct, frozen=True, gc=False, tag="replied"):
    """The model's reply is complete."""

    reply: Reply


class CallJudged(Struct, frozen=True, gc=False, omit_defaults=True, tag="call_judged"):
    """The policies gave their verdict on a call."""

    call_id: str
    verdict: str
    """`allow`, `deny` or `ask`."""
    code: str = ""
    reason: str = ""
    """For people."""
    machine: str = ""
    """The machine that it would run on; empty: the one that drives the run."""


class ApprovalAnswered(Struct, frozen=True, gc=False, omit_defaults=True, tag="approval_answered"):
    """The approver answered an `ask`; the decision may be `pending`."""

    call_id: str
    decision: str
    reason: str = ""
    arguments: dict[str, JSON] | None = None
    """A person edited the call: these arguments are judged, and run, instead of the model's."""


class CallStarted(Struct, frozen=True, gc=False, omit_defaults=True, tag="call_started"):
    """A call was passed to its executor."""

    call_id: str
    name: str
    arguments: dict[str, JSON]
    request_id: str
    machine: str = ""
    """The machine that it runs on; empty: the one that drives the run."""


class CallOutput(Struct, frozen=True, gc=False, tag="call_output"):
    """A running call produced output."""

    call_id: str
    text: str


class CallDelayed(Struct, frozen=True, gc=False, tag="call_delayed"):
    """The machine of a started call went offline, or came back."""

    call_id: str
    machine: str
    seconds: float
    """For how much longer the call waits for the machine; 0: the machine is online again."""


class CallFinished(Struct, frozen=True, gc=False, tag="call_finished"):
    """A call has its result; without a `CallStarted` before it, it never ran."""

    result: ToolResult


class Prompted(Struct, frozen=True, gc=False, omit_defaults=True, tag="prompted"):
    """The loop, or a person, added a user message to the history."""

    message: UserMessage
    why: str = ""
    """`confirm`, `continue`, `evidence`, `closing` or `steer`."""


class ContextTrimmed(Struct, frozen=True, gc=False, omit_defaults=True, tag="context_trimmed"):
    """The model is shown less of the history, so that it fits; the history itself is unchanged."""

    elide_before: int
    """Results before this message are shown as a stub."""
    drop_before: int = 0
    """Messages before this one, except the instructions and the task, are shown as the summary."""
    summary: str = ""
    result_chars: int = 0
    """Results that are still shown are cut to this length; 0: not cut."""
    usage: Usage = Usage()
    cost: float | None = None


class RunFinished(Struct, frozen=True, gc=False, omit_defaults=True, tag="run_finished"):
    """The run ended; `text` is the answer for the user."""

    stop: StopReason
    text: str
    output: dict[str, JSON] = {}
    reason: str = ""
    """For people: why it ended, if it did not simply complete."""
    turns: int = 0
    calls: int = 0
    tools_used: tuple[str, ...] = ()
    usage: Usage = Usage()
    cost: float | None = None


Event: TypeAlias = (
    RunStarted
    | RunResumed
    | ToolsChanged
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | ReplyRetried
    | ReplyFailed
    | Replied
    | CallJudged
    | ApprovalAnswered
    | CallStarted
    | CallOutput
    | CallDelayed
    | CallFinished
    | Prompted
    | ContextTrimmed
    | RunFinished
)

ReplyEvent: TypeAlias = TextDelta | ReasoningDelta | ReplyRetried | Replied
"""What a provider may yield: any number of the first three, then exactly one `Replied`."""


DELTA_EVENTS = frozenset({TextDelta, ReasoningDelta, CallOutput, CallDelayed})
"""The types of nearly all records of a run: a sink that waits for others can skip them at once."""


class Record(Struct, frozen=True, gc=False):
    """An event with its run, its number and its time."""

    run_id: str
    seq: int
    at: float
    """Unix time, seconds."""
    event: Event
