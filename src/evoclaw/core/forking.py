"""A run begun again from the middle of another: what was said before a turn, without the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Prompted, Record, Replied, RunStarted
from evoclaw.core.messages import Message, Reply, SystemMessage, ToolResult, UserMessage, user
from evoclaw.core.state import RunState


class NothingLeft(RecordingError):
    """The run had ended by the turn, and nothing more is said."""

    def __init__(self, turn: int) -> None:
        super().__init__(f"the run had ended by turn {turn}; give a message to go on with")
        self.turn = turn


def forked(records: Sequence[Record], turn: int, message: str = "") -> tuple[Message, ...]:
    """What a run begins with that goes another way from a turn on.

    Raises `RecordingError` where there is no such turn, or nothing to go on with.

    Args:
        records: Of the run.
        turn: The turn to have anew; what was before it is kept.
        message: What is said there; at turn 1, instead of the task.
    """
    messages = before_turn(records, turn)
    if message:
        if _unanswered(messages):
            raise RecordingError("calls of the last turn have no answer yet; fork at that turn")
        return with_message(messages, message)
    if _is_over(messages):
        raise NothingLeft(turn)
    return messages


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


def _is_over(messages: Sequence[Message]) -> bool:
    """Whether nothing is left to do: the last word is a reply without calls."""
    return bool(messages) and isinstance(last := messages[-1], Reply) and not last.calls


def _unanswered(messages: Sequence[Message]) -> bool:
    answered = {m.call_id for m in messages if isinstance(m, ToolResult)}
    replies = (m for m in messages if isinstance(m, Reply))
    return any(call.id not in answered for reply in replies for call in reply.calls)
