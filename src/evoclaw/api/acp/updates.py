"""The records of a run as the updates of an ACP session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from acp.helpers import (
    start_tool_call,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
)
from acp.schema import AgentMessageChunk, AgentThoughtChunk, ToolCallProgress, ToolCallStart

from evoclaw.api.acp.tool_calls import CallViews, fenced, result_content
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallOutput,
    CallStarted,
    ReasoningDelta,
    Record,
    Replied,
    ReplyRetried,
    TextDelta,
    TurnStarted,
)
from evoclaw.core.messages import JSON, Reply, ToolResult, is_object
from evoclaw.orchestrator.sanitizing import one_line

Update: TypeAlias = AgentMessageChunk | AgentThoughtChunk | ToolCallStart | ToolCallProgress
MAX_OUTPUT_TAIL_CHARS = 8_000
"""Of the output of a running call, the end is shown: an update replaces the one before."""


def tool_call_id(request_id: str) -> str:
    """The id of a call in an ACP session: the same in each attempt, and after a restart."""
    return request_id.rpartition(".")[0]


class RunUpdates:
    """Translates the records of one run, in their order."""

    def __init__(self, views: CallViews) -> None:
        """Show calls with these views."""
        self._views = views
        self._turn = 0
        self._has_text = self._has_reasoning = False
        """Whether the reply of this turn was streamed."""
        self._ids: dict[str, str] = {}
        """The ids of the calls of this turn, by the id that the model gave."""
        self._names: dict[str, str] = {}
        self._with_diff: set[str] = set()
        self._output: dict[str, str] = {}

    def of(self, record: Record) -> Iterator[Update]:
        """The updates that a record causes; mostly one or none."""
        match record.event:
            case TurnStarted(turn):
                self._turn, self._has_text, self._has_reasoning = turn, False, False
            case TextDelta(text):
                self._has_text = True
                yield update_agent_message_text(text)
            case ReasoningDelta(text):
                self._has_reasoning = True
                yield update_agent_thought_text(text)
            case ReplyRetried(reason=reason):
                note = f"\n[The reply failed and is requested again: {one_line(reason)}]\n"
                yield update_agent_thought_text(note)
            case Replied(reply):
                yield from self._replied(record.run_id, reply)
            case ApprovalAnswered(call_id, arguments=dict(arguments)) if call_id in self._ids:
                yield self._edited(call_id, arguments)
            case CallStarted() as call:
                yield self._started(call)
            case CallOutput(call_id, text) if call_id in self._ids:
                yield self._printed(call_id, text)
            case CallFinished(result) if result.call_id in self._ids:
                yield self._finished(result)
            case _:
                pass

    def _replied(self, run_id: str, reply: Reply) -> Iterator[Update]:
        if reply.reasoning and not self._has_reasoning:
            yield update_agent_thought_text(reply.reasoning)
        if reply.text and not self._has_text:
            yield update_agent_message_text(reply.text)
        self._ids.clear()
        for index, call in enumerate(reply.calls):
            self._ids[call.id] = f"{run_id}.{self._turn}.{index}"
            yield self._announce(call.id, call.name, _arguments(call.arguments))

    def _announce(self, call_id: str, name: str, arguments: dict[str, JSON]) -> ToolCallStart:
        view, id_ = self._views.of(name, arguments), self._ids[call_id]
        self._names[id_] = name
        if view.has_diff:
            self._with_diff.add(id_)
        return start_tool_call(
            id_,
            view.title,
            kind=view.kind,
            status="pending",
            content=view.content,
            locations=view.locations,
            raw_input=arguments,
        )

    def _edited(self, call_id: str, arguments: dict[str, JSON]) -> ToolCallProgress:
        """A person answered elsewhere, and changed the call."""
        id_ = self._ids[call_id]
        view = self._views.of(self._names[id_], arguments)
        return update_tool_call(
            id_,
            title=view.title,
            content=view.content,
            locations=view.locations,
            raw_input=arguments,
        )

    def _started(self, call: CallStarted) -> Update:
        if call.call_id in self._ids:
            return update_tool_call(self._ids[call.call_id], status="in_progress")
        self._ids[call.call_id] = tool_call_id(call.request_id)  # of a run that is resumed
        return self._announce(call.call_id, call.name, call.arguments)

    def _printed(self, call_id: str, text: str) -> ToolCallProgress:
        id_ = self._ids[call_id]
        tail = (self._output.get(id_, "") + text)[-MAX_OUTPUT_TAIL_CHARS:]
        self._output[id_] = tail
        return update_tool_call(id_, status="in_progress", content=[fenced(tail)])

    def _finished(self, result: ToolResult) -> ToolCallProgress:
        id_ = self._ids[result.call_id]
        self._output.pop(id_, None)
        if result.error is not None:
            return update_tool_call(id_, status="failed", content=result_content(result))
        if id_ in self._with_diff:
            return update_tool_call(id_, status="completed")
        return update_tool_call(id_, status="completed", content=result_content(result))


def _arguments(text: str) -> dict[str, JSON]:
    """The arguments as the model wrote them; none if they are malformed."""
    try:
        found: JSON = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if is_object(found) else {}
