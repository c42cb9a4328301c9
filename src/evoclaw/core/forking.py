"""A run begun again from the middle of another: what was said before a turn, without the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Prompted, Record, Replied, RunStarted
from evoclaw.core.messages import Message, SystemMessage, UserMessage, user
from evoclaw.core.state import RunState


def before_turn(records: Sequence[Record], turn: int) -> tuple[Message, ...]:
    """The messages as they stood when a turn's reply was asked for; turns count from 1.

    One more than there are turns gives everything, also calls that have no answer yet.
    """
    if not records or not isinstance(records[0].event, RunStarted):
        raise RecordingError("a recording begins with run_started")
    state = RunState(records[0].run_id)
    prompts = 0
    """Prompts of the loop that end the history: they were for a reply that is not kept."""
    for record in records:
        if isinstance(record.event, Replied):
            if state.turn == turn - 1:
                break
            prompts = 0
        elif isinstance(record.event, Prompted):
            prompts = 0 if record.event.why == "steer" else prompts + 1
        state.apply(record.event)
    if turn < 1 or state.turn != turn - 1:
        raise RecordingError(f"there is no turn {turn}; say 1 to {state.turn + 1}")
    kept = list(state.history)
    del kept[len(kept) - prompts :]
    asked = state.asked.calls if state.asked else ()
    answers = [state.answers[call.id] for call in asked if call.id in state.answers]
    return (*kept, *answers)


def with_prompt(messages: Iterable[Message], text: str) -> tuple[Message, ...]:
    """The same under other instructions."""
    rest = [message for message in messages if not isinstance(message, SystemMessage)]
    return (SystemMessage(text), *rest)


def with_message(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The same with something else said: instead of a last user message, or after the rest."""
    kept = list(messages)
    if kept and isinstance(kept[-1], UserMessage):
        kept.pop()
    return (*kept, user(text))
