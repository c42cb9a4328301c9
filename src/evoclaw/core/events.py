"""The facts of a run, one frozen class each, and the record that stamps them.

Events carry no clock: a run told again gives the same events, and only the record's `at` differs.
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
    """For a person; the run resumes later."""


class RunStarted(Struct, frozen=True, gc=False, tag="run_started"):
    """A run began with these messages, under these limits."""

    model: str
    messages: tuple[Message, ...]
    settings: LoopSettings
    profile: Profile


class RunResumed(Struct, frozen=True, gc=False, tag="run_resumed"):
    """A run that stopped or was cut off goes on where its records end."""

    model: str
    settings: LoopSettings
    profile: Profile


class ToolsChanged(Struct, frozen=True, gc=False, tag="tools_changed"):
    """The tools there are, at the start and whenever they differ from before."""

    tools: tuple[Tool, ...]


class TurnStarted(Struct, frozen=True, gc=False, omit_defaults=True, tag="turn_started"):
    """The model is asked for a reply."""

    turn: int
    offer_tools: bool = True
    """False for a closing reply, or when there are none."""
    chars: int = 0
    """How long what is sent is; with the server's own count it corrects the token estimate."""


class TextDelta(Struct, frozen=True, gc=False, tag="text_delta"):
    """A piece of the reply's text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag="reasoning_delta"):
    """A piece of what the model thinks aloud."""

    text: str


class ReplyRetried(Struct, frozen=True, gc=False, tag="reply_retried"):
    """The reply broke off or was refused and is asked for again; its deltas so far are void."""

    kind: str
    reason: str
    attempt: int
    wait: float


class ReplyFailed(Struct, frozen=True, gc=False, omit_defaults=True, tag="reply_failed"):
    """No reply could be had; what the attempts used up is spent all the same."""

    kind: str
    reason: str
    usage: Usage = Usage()


class Replied(Struct, frozen=True, gc=False, tag="replied"):
    """The model's reply is whole."""

    reply: Reply


class CallJudged(Struct, frozen=True, gc=False, omit_defaults=True, tag="call_judged"):
    """A policy said whether a call may run."""

    call_id: str
    verdict: str
    """`allow`, `deny` or `ask`."""
    code: str = ""
    reason: str = ""
    """For people."""


class ApprovalAnswered(Struct, frozen=True, gc=False, omit_defaults=True, tag="approval_answered"):
    """A person (or nobody, yet) answered an `ask`."""

    call_id: str
    decision: str
    reason: str = ""


class CallStarted(Struct, frozen=True, gc=False, tag="call_started"):
    """A call was handed to its executor."""

    call_id: str
    name: str
    arguments: dict[str, JSON]
    request_id: str


class CallOutput(Struct, frozen=True, gc=False, tag="call_output"):
    """A running call said something."""

    call_id: str
    text: str


class CallFinished(Struct, frozen=True, gc=False, tag="call_finished"):
    """A call has its answer; without a `CallStarted` before it, it was never run."""

    result: ToolResult


class Prompted(Struct, frozen=True, gc=False, omit_defaults=True, tag="prompted"):
    """The loop, or a person, put another user message into the history."""

    message: UserMessage
    why: str = ""
    """`confirm`, `continue`, `evidence`, `closing` or `steer`."""


class ContextTrimmed(Struct, frozen=True, gc=False, omit_defaults=True, tag="context_trimmed"):
    """What the model sees of the history was cut to fit; the history itself is whole."""

    elide_before: int
    """Results before this message are shown as a stub."""
    drop_before: int = 0
    """Messages before this one, but for the instructions and the task, are shown as the summary."""
    summary: str = ""
    result_chars: int = 0
    """Results that are still shown are cut to this length; 0 leaves them whole."""
    usage: Usage = Usage()
    cost: float | None = None


class RunFinished(Struct, frozen=True, gc=False, omit_defaults=True, tag="run_finished"):
    """The run ended; `text` is what the user is told."""

    stop: StopReason
    text: str
    output: dict[str, JSON] = {}
    reason: str = ""
    """For people: what exactly ended it, when it was not plain completion."""
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
    | CallFinished
    | Prompted
    | ContextTrimmed
    | RunFinished
)

ReplyEvent: TypeAlias = TextDelta | ReasoningDelta | ReplyRetried | Replied
"""What a provider may say: any number of the first three, then exactly one `Replied`."""


PIECES = frozenset({TextDelta, ReasoningDelta, CallOutput})
"""What nearly all records of a run are, by type: whoever waits for something else passes them over
at once."""


class Record(Struct, frozen=True, gc=False):
    """A stamped fact."""

    run_id: str
    seq: int
    at: float
    """Unix time, seconds."""
    event: Event
