"""What whoever sent a letter is told, made from how its run ended, or why there is none."""

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
"""For programs: what kept a run from beginning."""
_STATES = {StopReason.COMPLETED: State.ANSWER, StopReason.WAITING: State.WAITING}


def ended(
    letter: Letter, run_id: str, seq: int, stop: StopReason, text: str, reason: str, now: float
) -> Answer:
    """Tell how a run ended, or what it waits for.

    Args:
        letter: What it answers.
        run_id: Of the run.
        seq: Of the record that says so: the answer's id is made of it, and is always the same.
        stop: How it ended.
        text: What the user is told.
        reason: What exactly ended it, where there is no text.
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
    """Show what may be chosen, if the sender is asked something: the next letter answers it."""
    lines = [
        f"{number}. {option}"
        for question in questions[:1]
        for number, option in enumerate(question.options, 1)
    ]
    hint = ["Say it here."] if questions else []
    return replace(answer, text="\n".join((answer.text, *lines, *hint)))


def failed(letter: Letter, id_: str, problem: EvoClawError, now: float) -> Answer:
    """Tell why no run could begin, and that it may be said again."""
    return Answer(
        id_,
        letter.agent,
        letter.id,
        State.FAILED,
        f"This was not answered: {problem}.",
        reason=word_for(problem),
        session=letter.conversation,
        timestamp=now,
    )


def word_for(problem: EvoClawError) -> str:
    """A word for why, for programs."""
    for kind in type(problem).__mro__:
        if kind in _WORDS:
            return _WORDS[kind]
    return "failed"
