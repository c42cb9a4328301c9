"""Makes the events of a task from the records of its run."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core.events import (
    Record,
    Replied,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TextDelta,
    TurnStarted,
)
from evoclaw.orchestrator.a2a.schemas import (
    A2aArtifact,
    A2aArtifactUpdate,
    A2aEvent,
    A2aMessage,
    A2aPart,
    A2aRole,
    A2aStatusUpdate,
    A2aTaskState,
    A2aTaskStatus,
    text_part,
    timestamp,
)

ANSWER_ID = "answer"
"""The id of the artifact with the answer of a run."""
_STATES = {
    StopReason.COMPLETED: A2aTaskState.COMPLETED,
    StopReason.CANCELLED: A2aTaskState.CANCELED,
}


def state_of(stop: StopReason) -> A2aTaskState:
    """The state of a task whose run has ended."""
    return _STATES.get(stop, A2aTaskState.FAILED)


def answer_artifact(text: str) -> A2aArtifact:
    """The answer of a run as an artifact."""
    return A2aArtifact(ANSWER_ID, (text_part(text),), ANSWER_ID)


def agent_message(
    message_id: str, task_id: str, context_id: str, parts: Sequence[A2aPart]
) -> A2aMessage:
    """A message of the agent about a task."""
    return A2aMessage(
        message_id, A2aRole.AGENT, tuple(parts), context_id=context_id, task_id=task_id
    )


class A2aEventWriter:
    """Turns the records of one run into events; does not write the final state of the task.

    Text is sent as the model writes it, as pieces of the artifact `answer`. Text before calls turns
    out not to be the answer: it is sent again as a message, and the next text replaces the piece.
    """

    def __init__(self, task_id: str, context_id: str) -> None:
        self._task_id, self._context_id = task_id, context_id
        self._sent, self._is_open = "", False
        self._is_provisional = False
        self.end: RunFinished | None = None
        """How the run ended, or why it waits."""

    def read(self, record: Record) -> Sequence[A2aEvent]:
        """The events of one record."""
        match record.event:
            case RunStarted(settings=settings) | RunResumed(settings=settings):
                # A reply may still be rejected: it is not sent before the run ends.
                self._is_provisional = settings.confirm or settings.evidence is True
                self.end = None
                return (self._status(A2aTaskState.WORKING, record),)
            case TurnStarted() | ReplyRetried():
                self._sent, self._is_open = "", False
            case TextDelta(text) if text and not self._is_provisional:
                return (self._piece(text),)
            case Replied(reply) if reply.calls and reply.text.strip():
                message = agent_message(
                    f"{self._task_id}-{record.seq}",
                    self._task_id,
                    self._context_id,
                    (text_part(reply.text),),
                )
                return (self._status(A2aTaskState.WORKING, record, message),)
            case RunFinished():
                self.end = record.event
                if record.event.stop is StopReason.COMPLETED:
                    return (self._last_piece(record.event.text),)
            case _:
                pass
        return ()

    def _piece(self, text: str) -> A2aEvent:
        append, self._is_open = self._is_open, True
        self._sent += text
        return self._artifact(text, append=append)

    def _last_piece(self, text: str) -> A2aEvent:
        """The rest of the answer; all of it if other text was sent."""
        if self._is_open and text.startswith(self._sent):
            return self._artifact(text[len(self._sent) :], append=True, last=True)
        return self._artifact(text, append=False, last=True)

    def _artifact(self, text: str, *, append: bool, last: bool = False) -> A2aEvent:
        artifact = answer_artifact(text)
        return A2aEvent(
            artifact_update=A2aArtifactUpdate(
                self._task_id, self._context_id, artifact, append, last
            )
        )

    def _status(
        self, state: A2aTaskState, record: Record, message: A2aMessage | None = None
    ) -> A2aEvent:
        status = A2aTaskStatus(state, message, timestamp(record.at))
        return A2aEvent(status_update=A2aStatusUpdate(self._task_id, self._context_id, status))
