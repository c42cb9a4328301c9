"""Message content in spans: bounded and redacted; only if content capture is switched on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.messages import JSON, Message, Reply, SystemMessage, ToolResult, UserMessage
from evoclaw.core.redaction import SecretFields, secret_fields_of

if TYPE_CHECKING:
    from evoclaw.core.redaction import Redactor
    from evoclaw.core.tools import Tool
    from evoclaw.observe.tracing.attributes import SpanAttributes

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
MAX_TEXT_CHARS = 8_000
"""Of one text."""
MAX_MESSAGES = 50
"""Of one request; the last ones are kept."""


class Content:
    """The messages, arguments and results of one run."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._unsent: list[Message] = []
        self._marks: dict[str, SecretFields | None] = {}

    def tools(self, tools: Iterable[Tool]) -> None:
        """Take note of the parameters that are secrets."""
        self._marks = {
            name: secret_fields_of(tool.parameters)
            for tool in tools
            for name in (tool.name, *tool.aliases)
        }

    def add(self, *messages: Message) -> None:
        """Add messages of the next request."""
        self._unsent = [*self._unsent, *messages][-MAX_MESSAGES:]

    def request(self) -> SpanAttributes:
        """The messages that are new in this request."""
        messages, self._unsent = self._unsent, []
        attributes: SpanAttributes = {}
        system = [self._text(each.text) for each in messages if isinstance(each, SystemMessage)]
        if system:
            attributes[INSTRUCTIONS] = _json(system)
        others = [each for each in messages if not isinstance(each, SystemMessage)]
        return {**attributes, INPUT: _json([self._message(each) for each in others])}

    def reply(self, reply: Reply, finish: str) -> SpanAttributes:
        """The reply of the model."""
        return {OUTPUT: _json([{**self._message(reply), "finish_reason": finish}])}

    def arguments(self, tool: str, arguments: dict[str, JSON]) -> SpanAttributes:
        """The arguments of a call."""
        return {ARGUMENTS: _json(self._redacted(tool, arguments))}

    def result(self, result: ToolResult) -> SpanAttributes:
        """The result of a call."""
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
                return {"role": "assistant", "parts": self._reply_parts(message)}

    def _reply_parts(self, reply: Reply) -> list[JSON]:
        parts: list[JSON] = [self._text(reply.text)] if reply.text else []
        for call in reply.calls:
            arguments = self._redacted(call.name, _read(call.arguments))
            part = {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}
            parts.append(part)
        return parts

    def _text(self, text: str) -> dict[str, JSON]:
        return {"type": "text", "content": self._redactor.text(text, MAX_TEXT_CHARS)}

    def _redacted(self, tool: str, value: JSON) -> JSON:
        return self._redactor.value(value, self._marks.get(tool), limit=MAX_TEXT_CHARS)


def _read(text: str) -> JSON:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {"unreadable": text}


def _json(value: Sequence[JSON] | JSON) -> str:
    return msgspec.json.encode(value).decode(errors="replace")
