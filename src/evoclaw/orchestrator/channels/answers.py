"""Builds the answer to an inbound message from how its run ended, or why no run started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from evoclaw.core import wording
from evoclaw.core.errors import AgentNotFound, ConfigError, EvoClawError, ProviderError
from evoclaw.core.events import StopReason
from evoclaw.orchestrator.channels.letters import Answer, Letter, State
from evoclaw.orchestrator.errands import Draining, KeyReused, TooMany
from evoclaw.orchestrator.sessions.sessions import Busy
from evoclaw.tools.question import Question

_WORDS: Mapping[type[EvoClawError], str] = {
    Busy: "busy",
    Draining: "draining",
    TooMany: "too_many",
    KeyReused: "conflict",
    AgentNotFound: "no_agent",
    ProviderError: "no_model",
    ConfigError: "misconfigured",
}
"""The code that programs get when a run could not start."""
_STATES = {StopReason.COMPLETED: State.ANSWER, StopReason.WAITING: State.WAITING}


def ended(
    letter: Letter, run_id: str, seq: int, stop: StopReason, text: str, reason: str, now: float
) -> Answer:
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
    state = _STATES.get(stop, State.FAILED)
    return Answer(
        f"{run_id}.{seq}",
        letter.agent,
        letter.id,
        state,
        text or wording.ending(stop, reason),
        reason="" if state is State.ANSWER else str(stop),
        session=letter.conversation,
        run_id=run_id,
        timestamp=now,
    )


def asking(answer: Answer, questions: Sequence[Question]) -> Answer:
    """Add the options of the first question; the sender's next message answers it."""
    lines = [
        f"{number}. {option}"
        for question in questions[:1]
        for number, option in enumerate(question.options, 1)
    ]
    hint = ["Reply here to answer."] if questions else []
    return replace(answer, text="\n".join((answer.text, *lines, *hint)))


def failed(letter: Letter, id_: str, problem: EvoClawError, now: float) -> Answer:
    """The answer that reports why no run could start; the sender may send the message again."""
    return Answer(
        id_,
        letter.agent,
        letter.id,
        State.FAILED,
        f"Your message was not answered: {problem}.",
        reason=word_for(problem),
        session=letter.conversation,
        timestamp=now,
    )


def word_for(problem: EvoClawError) -> str:
    """The code of an error, for programs."""
    for kind in type(problem).__mro__:
        if kind in _WORDS:
            return _WORDS[kind]
    return "failed"
