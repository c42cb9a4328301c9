"""Builds the answer to an inbound message from how its run ended, or why no run started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from evoclaw.core import wording
from evoclaw.core.errors import AgentNotFound, ConfigError, EvoClawError, ProviderError
from evoclaw.core.events import StopReason
from evoclaw.orchestrator.channels.inbound import ChannelAnswer, InboundMessage, MessageState
from evoclaw.orchestrator.runs.requests import Draining, KeyReused, RunQueueFull
from evoclaw.orchestrator.sessions.conversations import SessionBusy
from evoclaw.tools.question import Question

_ERROR_CODES: Mapping[type[EvoClawError], str] = {
    SessionBusy: "busy",
    Draining: "draining",
    RunQueueFull: "too_many",
    KeyReused: "conflict",
    AgentNotFound: "no_agent",
    ProviderError: "no_model",
    ConfigError: "misconfigured",
}
"""The code that programs get when a run could not start."""
_STATES_BY_STOP = {
    StopReason.COMPLETED: MessageState.ANSWER,
    StopReason.WAITING: MessageState.WAITING,
}


def for_run_end(
    message: InboundMessage,
    run_id: str,
    seq: int,
    stop: StopReason,
    text: str,
    reason: str,
    now: float,
) -> ChannelAnswer:
    """The answer that reports how a run ended, or what it waits for.

    Args:
        message: The message that is answered.
        run_id: The id of the run.
        seq: The number of the record that ended the run; it makes the answer's id stable.
        stop: Why the run ended.
        text: The run's final text for the user.
        reason: The detailed cause, for a run without a text.
        now: Unix seconds.
    """
    state = _STATES_BY_STOP.get(stop, MessageState.FAILED)
    return ChannelAnswer(
        f"{run_id}.{seq}",
        message.agent,
        message.id,
        state,
        text or wording.ending(stop, reason),
        reason="" if state is MessageState.ANSWER else str(stop),
        session=message.conversation,
        run_id=run_id,
        timestamp=now,
    )


def with_question(answer: ChannelAnswer, questions: Sequence[Question]) -> ChannelAnswer:
    """Add the options of the first question; the sender's next message answers it."""
    lines = [
        f"{number}. {option}"
        for question in questions[:1]
        for number, option in enumerate(question.options, 1)
    ]
    hint = ["Reply here to answer."] if questions else []
    return replace(answer, text="\n".join((answer.text, *lines, *hint)))


def for_failure(
    message: InboundMessage, id_: str, problem: EvoClawError, now: float
) -> ChannelAnswer:
    """The answer that reports why no run could start; the sender may send the message again."""
    return ChannelAnswer(
        id_,
        message.agent,
        message.id,
        MessageState.FAILED,
        f"Your message was not answered: {problem}.",
        reason=error_code(problem),
        session=message.conversation,
        timestamp=now,
    )


def error_code(problem: EvoClawError) -> str:
    """The code of an error, for programs."""
    for kind in type(problem).__mro__:
        if kind in _ERROR_CODES:
            return _ERROR_CODES[kind]
    return "failed"
