"""Fork a recorded run: the messages with which another run starts from one of its turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Prompted, Record, Replied, RunStarted
from evoclaw.core.messages import Message, Reply, SystemMessage, ToolResult, UserMessage, user
from evoclaw.core.state import RunState


class RunAlreadyEnded(RecordingError):
    """The run ended before the turn, and there is no new message."""

    def __init__(self, turn: int) -> None:
        super().__init__(f"the run ended before turn {turn}; give a message to continue with")
        self.turn = turn


def fork_messages(records: Sequence[Record], turn: int, message: str = "") -> tuple[Message, ...]:
    """The messages with which a fork of a run starts.

    Raises `RecordingError` if there is no such turn, or no message to continue with.

    Args:
        records: The records of the run.
        turn: The turn to run again; what was before it is kept.
        message: A new user message; at turn 1 it replaces the task.
    """
    messages = before_turn(records, turn)
    if message:
        if _unanswered(messages):
            raise RecordingError(
                "the calls of the last turn have no results yet; fork at that turn"
            )
        return with_message(messages, message)
    if _is_finished(messages):
        raise RunAlreadyEnded(turn)
    return messages


def before_turn(records: Sequence[Record], turn: int) -> tuple[Message, ...]:
    """The messages that were sent for a turn's reply; turns count from 1.

    One more than the number of turns gives all messages, also calls that have no result yet.
    """
    if not records or not isinstance(records[0].event, RunStarted):
        raise RecordingError("the recording does not start with run_started")
    state = RunState(records[0].run_id)
    prompts = 0
    """Prompts of the loop at the end of the history: they belong to a reply that is dropped."""
    for record in records:
        if isinstance(record.event, Replied):
            if state.turn == turn - 1:
                break
            prompts = 0
        elif isinstance(record.event, Prompted):
            prompts = 0 if record.event.why == "steer" else prompts + 1
        state.apply(record.event)
    if turn < 1 or state.turn != turn - 1:
        raise RecordingError(f"turn {turn} does not exist; choose 1 to {state.turn + 1}")
    kept = list(state.history)
    del kept[len(kept) - prompts :]
    calls = state.open_reply.calls if state.open_reply else ()
    answers = [state.answers[call.id] for call in calls if call.id in state.answers]
    return (*kept, *answers)


def with_prompt(messages: Iterable[Message], text: str) -> tuple[Message, ...]:
    """The same messages with another system prompt."""
    rest = [message for message in messages if not isinstance(message, SystemMessage)]
    return (SystemMessage(text), *rest)


def with_message(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The same messages with a new user message: it replaces a last one, or is appended."""
    kept = list(messages)
    if kept and isinstance(kept[-1], UserMessage):
        kept.pop()
    return (*kept, user(text))


def _is_finished(messages: Sequence[Message]) -> bool:
    """Whether the last message is a reply without calls."""
    return bool(messages) and isinstance(last := messages[-1], Reply) and not last.calls


def _unanswered(messages: Sequence[Message]) -> bool:
    answered = {m.call_id for m in messages if isinstance(m, ToolResult)}
    replies = (m for m in messages if isinstance(m, Reply))
    return any(call.id not in answered for reply in replies for call in reply.calls)
