"""Exports the records of a run in the Agent Trajectory Interchange Format (ATIF) of Harbor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from evoclaw.core.events import (
    CallFinished,
    Prompted,
    Record,
    Replied,
    RunFinished,
    RunStarted,
    ToolsChanged,
)
from evoclaw.core.messages import (
    JSON,
    Block,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    is_object,
)
from evoclaw.core.tools import Tool
from evoclaw.core.version import VERSION

ATIF_VERSION = "ATIF-v1.7"


def to_atif(records: Iterable[Record], *, session_id: str = "") -> dict[str, JSON]:
    """The trajectory of a run; empty `steps` if there are no records."""
    found = _Trajectory(session_id)
    for record in records:
        found.add(record)
    return found.document()


class _Trajectory:
    """Collects the steps: one for each message, and one for each reply with its results."""

    def __init__(self, session_id: str) -> None:
        self._session_id, self._run_id, self._model = session_id, "", ""
        self._steps: list[dict[str, JSON]] = []
        self._by_call: dict[str, dict[str, JSON]] = {}
        """The step that made a call, by call id."""
        self._tools: tuple[Tool, ...] = ()
        self._end: RunFinished | None = None

    def add(self, record: Record) -> None:
        """Add one record."""
        self._run_id = record.run_id
        match record.event:
            case RunStarted(model, messages):
                self._model = model
                self._add_opening(messages, record.at)
            case ToolsChanged(tools):
                self._tools = tools
            case Replied(reply):
                self._add_reply(reply, record.at)
            case CallFinished(result):
                self._add_result(result)
            case Prompted(message):
                self._step("user", _text(message.blocks), record.at)
            case RunFinished():
                self._end = record.event
            case _:
                pass

    def document(self) -> dict[str, JSON]:
        """The trajectory as a JSON object."""
        agent: dict[str, JSON] = {"name": "evoclaw", "version": VERSION}
        if self._model:
            agent["model_name"] = self._model
        if self._tools:
            agent["tool_definitions"] = [_definition(tool) for tool in self._tools]
        document: dict[str, JSON] = {"schema_version": ATIF_VERSION, "agent": agent}
        if self._session_id or self._run_id:
            document["session_id"] = self._session_id or self._run_id
            document["trajectory_id"] = self._run_id
        document["steps"] = self._steps
        if (end := self._end) is not None:
            document["final_metrics"] = _final_metrics(end, len(self._steps))
            document["extra"] = {"stop": str(end.stop), "reason": end.reason, "answer": end.text}
        return document

    def _add_opening(self, messages: Sequence[Message], at: float) -> None:
        """The messages that the run started with: replies among them are of earlier runs."""
        for message in messages:
            match message:
                case SystemMessage(text):
                    self._step("system", text, at)
                case UserMessage(blocks):
                    self._step("user", _text(blocks), at)
                case Reply():
                    self._add_reply(message, at, is_copied_context=True)
                case ToolResult():
                    self._add_result(message)

    def _add_reply(self, reply: Reply, at: float, **more: JSON) -> None:
        step = self._step("agent", reply.text, at, **more)
        if reply.model or self._model:
            step["model_name"] = reply.model or self._model
        if reply.reasoning:
            step["reasoning_content"] = reply.reasoning
        if reply.calls:
            step["tool_calls"] = [_call(call) for call in reply.calls]
            self._by_call |= {call.id: step for call in reply.calls}
        if reply.usage != Usage():
            step["metrics"] = _metrics(reply)

    def _add_result(self, result: ToolResult) -> None:
        step = self._by_call.get(result.call_id)
        if step is None:
            return
        found: dict[str, JSON] = {
            "source_call_id": result.call_id,
            "content": _text(result.blocks),
        }
        if result.error is not None:
            found["extra"] = {"error": str(result.error)}
        step.setdefault("observation", {"results": []})["results"].append(found)

    def _step(self, source: str, message: str, at: float, **more: JSON) -> dict[str, JSON]:
        step: dict[str, JSON] = {
            "step_id": len(self._steps) + 1,
            "timestamp": datetime.fromtimestamp(at, UTC).isoformat(),
            "source": source,
            "message": message,
            **more,
        }
        self._steps.append(step)
        return step


def _text(blocks: Iterable[Block]) -> str:
    """The text of blocks; the format refers to images by path, so they are only named."""
    return "\n".join(
        f"[image {block.media_type}]" if isinstance(block, ImageBlock) else block.text
        for block in blocks
    )


def _call(call: ToolCall) -> dict[str, JSON]:
    found: dict[str, JSON] = {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": {},
    }
    try:
        arguments: JSON = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        arguments = None
    if is_object(arguments):
        found["arguments"] = arguments
    else:
        found["extra"] = {"malformed_arguments": call.arguments}
    return found


def _definition(tool: Tool) -> dict[str, JSON]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _metrics(reply: Reply) -> dict[str, JSON]:
    usage = reply.usage
    found: dict[str, JSON] = {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "cached_tokens": usage.cache_read,
    }
    if reply.cost is not None:
        found["cost_usd"] = reply.cost
    return found


def _final_metrics(end: RunFinished, steps: int) -> dict[str, JSON]:
    found: dict[str, JSON] = {
        "total_prompt_tokens": end.usage.input,
        "total_completion_tokens": end.usage.output,
        "total_cached_tokens": end.usage.cache_read,
        "total_steps": steps,
    }
    if end.cost is not None:
        found["total_cost_usd"] = end.cost
    return found
