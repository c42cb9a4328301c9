"""What was said, as spans may hold it: bounded, and without secrets; only where somebody asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.messages import JSON, Message, Reply, SystemMessage, ToolResult, UserMessage
from evoclaw.core.redaction import Marks, marks_of

if TYPE_CHECKING:
    from evoclaw.core.redaction import Redactor
    from evoclaw.core.tools import Tool
    from evoclaw.observe.tracing.attributes import SpanAttributes

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
MAX_TEXT_CHARS = 8_000
"""Characters of one text."""
MAX_MESSAGES = 50
"""Messages of one request, the last ones."""


class Content:
    """What one run says, piece by piece."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._fresh: list[Message] = []
        self._marks: dict[str, Marks | None] = {}

    def tools(self, tools: Iterable[Tool]) -> None:
        """Know which parameters are secrets."""
        self._marks = {
            name: marks_of(tool.parameters) for tool in tools for name in (tool.name, *tool.aliases)
        }

    def hear(self, *messages: Message) -> None:
        """Something is said that the model is shown next."""
        self._fresh = [*self._fresh, *messages][-MAX_MESSAGES:]

    def request(self) -> SpanAttributes:
        """What the model is shown that it was not shown before."""
        fresh, self._fresh = self._fresh, []
        said: SpanAttributes = {}
        told = [self._text(one.text) for one in fresh if isinstance(one, SystemMessage)]
        if told:
            said[INSTRUCTIONS] = _json(told)
        others = [one for one in fresh if not isinstance(one, SystemMessage)]
        return {**said, INPUT: _json([self._message(one) for one in others])}

    def reply(self, reply: Reply, finish: str) -> SpanAttributes:
        """What it answered."""
        return {OUTPUT: _json([{**self._message(reply), "finish_reason": finish}])}

    def arguments(self, tool: str, arguments: dict[str, JSON]) -> SpanAttributes:
        """What a call was made with."""
        return {ARGUMENTS: _json(self._hidden(tool, arguments))}

    def result(self, result: ToolResult) -> SpanAttributes:
        """What a call gave."""
        return {RESULT: self._redactor.text(result.text, MAX_TEXT_CHARS)}

    def _message(self, message: UserMessage | Reply | ToolResult) -> dict[str, JSON]:
        match message:
            case UserMessage():
                return {"role": "user", "parts": [self._text(message.text)]}
            case ToolResult():
                response = self._redactor.text(message.text, MAX_TEXT_CHARS)
                part = {"type": "tool_call_response", "id": message.call_id, "response": response}
                return {"role": "tool", "parts": [part]}
            case Reply():
                return {"role": "assistant", "parts": self._spoken(message)}

    def _spoken(self, reply: Reply) -> list[JSON]:
        parts: list[JSON] = [self._text(reply.text)] if reply.text else []
        for call in reply.calls:
            given = self._hidden(call.name, _read(call.arguments))
            part = {"type": "tool_call", "id": call.id, "name": call.name, "arguments": given}
            parts.append(part)
        return parts

    def _text(self, text: str) -> dict[str, JSON]:
        return {"type": "text", "content": self._redactor.text(text, MAX_TEXT_CHARS)}

    def _hidden(self, tool: str, value: JSON) -> JSON:
        return self._redactor.value(value, self._marks.get(tool), limit=MAX_TEXT_CHARS)


def _read(text: str) -> JSON:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {"unreadable": text}


def _json(value: Sequence[JSON] | JSON) -> str:
    return msgspec.json.encode(value).decode(errors="replace")
