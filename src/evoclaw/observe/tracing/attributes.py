"""Names, attributes and content of spans: the GenAI semantic conventions, and EvoClaw's own.

Names of tools, agents and calls may be invented by a model: they are bounded and cleaned.
Messages, arguments and results are bounded and redacted, and only there if content capture is
switched on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evoclaw.core.events import (
    ApprovalAnswered,
    CallJudged,
    ContextTrimmed,
    ReplyRetried,
    RunFinished,
    StopReason,
)
from evoclaw.core.messages import (
    JSON,
    Finish,
    Message,
    Reply,
    SystemMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from evoclaw.core.redaction import SecretFields, secret_fields_of

if TYPE_CHECKING:
    from evoclaw.core.agent import LoopSettings
    from evoclaw.core.redaction import Redactor
    from evoclaw.core.tools import Tool
    from evoclaw.observe.tracing.spans import Value


OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
AGENT_NAME, CONVERSATION = "gen_ai.agent.name", "gen_ai.conversation.id"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
TEMPERATURE, MAX_TOKENS = "gen_ai.request.temperature", "gen_ai.request.max_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE = "gen_ai.usage.cache_creation.input_tokens"
TOOL_NAME, TOOL_CALL, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"
INVOKE_AGENT, CHAT, EXECUTE_TOOL = "invoke_agent", "chat", "execute_tool"
FUNCTION = "function"
"""The type of all EvoClaw tools."""
ERROR_TYPE = "error.type"
RUN_ID, TENANT, TURN = "evoclaw.run_id", "evoclaw.tenant", "evoclaw.turn"
STOP, TURNS, CALLS, COST = "evoclaw.stop", "evoclaw.turns", "evoclaw.calls", "evoclaw.cost"
RESUMED, CUT_OFF = "evoclaw.resumed", "evoclaw.cut_off"
REQUEST_ID, VERDICT, CODE = "evoclaw.request_id", "evoclaw.verdict", "evoclaw.verdict.code"
APPROVAL, AGENT_ID = "evoclaw.approval", "evoclaw.agent_id"
OUTCOME, ISOLATION, EXIT_CODE = "evoclaw.outcome", "evoclaw.isolation", "evoclaw.exit_code"
RETRIED, APPROVED, TRIMMED = "evoclaw.retried", "evoclaw.approval", "evoclaw.context_trimmed"
ATTEMPT, WAIT = "evoclaw.attempt", "evoclaw.wait_s"
SUCCESS, INTERRUPTED = "success", "cut_off"
MAX_NAME_CHARS = 128
"""Characters of a name."""
PROMPT = "prompt"

_PROVIDERS: Mapping[str, str] = {
    "openai-responses": "openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Providers that the conventions name differently than EvoClaw does."""
_FINISHES: Mapping[Finish, str] = {
    Finish.STOP: "stop",
    Finish.CALLS: "tool_call",
    Finish.LENGTH: "length",
    Finish.FILTERED: "content_filter",
}
_FAILED = frozenset(
    {
        StopReason.ERROR,
        StopReason.BUDGET_EXCEEDED,
        StopReason.DURATION_EXCEEDED,
        StopReason.LOOP_DETECTED,
    }
)

SpanAttributes = dict[str, "Value"]


class TracedRun(Struct, frozen=True):
    """The agent, session and tenant of a run."""

    agent: str = ""
    session: str = ""
    tenant: str = ""


def clean(name: str) -> str:
    """A name without control characters, bounded."""
    cut = name[:MAX_NAME_CHARS]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def model_of(name: str) -> SpanAttributes:
    """The provider of a model, and its name there."""
    prefix, found, model = name.partition("/")
    if not found:
        prefix, model = name, name
    return {PROVIDER: clean(_PROVIDERS.get(prefix, prefix)), REQUEST_MODEL: clean(model)}


def run_span(run_id: str, model: str, traced: TracedRun) -> tuple[str, SpanAttributes]:
    """The name and the attributes of a run's span at its start."""
    values: SpanAttributes = {OPERATION: INVOKE_AGENT, RUN_ID: clean(run_id), **model_of(model)}
    for name, value in (
        (AGENT_NAME, traced.agent), (CONVERSATION, traced.session), (TENANT, traced.tenant),
    ):  # fmt: skip
        if value:
            values[name] = clean(value)
    return _named(INVOKE_AGENT, traced.agent), values


def run_end(event: RunFinished) -> tuple[SpanAttributes, str]:
    """The attributes of a run's span at its end, and the kind of its error, if any."""
    values: SpanAttributes = {STOP: str(event.stop), TURNS: event.turns, CALLS: event.calls}
    values |= usage_attributes(event.usage)
    if event.cost is not None:
        values[COST] = event.cost
    return values, str(event.stop) if event.stop in _FAILED else ""


def request_span(model: str, settings: LoopSettings | None) -> tuple[str, SpanAttributes]:
    """The name and the attributes of a model request's span at its start."""
    values: SpanAttributes = {OPERATION: CHAT, **model_of(model)}
    if settings is not None and settings.temperature is not None:
        values[TEMPERATURE] = settings.temperature
    if settings is not None and settings.max_tokens is not None:
        values[MAX_TOKENS] = settings.max_tokens
    return _named(CHAT, str(values[REQUEST_MODEL])), values


def replied(reply: Reply) -> SpanAttributes:
    """The attributes of a model's reply."""
    values: SpanAttributes = {FINISH_REASONS: [finish(reply)], **usage_attributes(reply.usage)}
    if reply.model:
        values[RESPONSE_MODEL] = clean(reply.model)
    if reply.cost is not None:
        values[COST] = reply.cost
    return values


def finish(reply: Reply) -> str:
    """The finish reason of a reply, as the conventions name it."""
    return _FINISHES[reply.finish]


def usage_attributes(usage: Usage) -> SpanAttributes:
    """The attributes of token usage."""
    values: SpanAttributes = {INPUT_TOKENS: usage.input, OUTPUT_TOKENS: usage.output}
    if usage.cache_read:
        values[CACHE_READ] = usage.cache_read
    if usage.cache_write:
        values[CACHE_WRITE] = usage.cache_write
    return values


def retried(event: ReplyRetried) -> SpanAttributes:
    """The attributes of a retried request."""
    return {ERROR_TYPE: clean(event.kind), ATTEMPT: event.attempt, WAIT: event.wait}


def trimmed(event: ContextTrimmed) -> SpanAttributes:
    """The attributes of a trimmed context."""
    return usage_attributes(event.usage)


def approval(event: ApprovalAnswered) -> SpanAttributes:
    """The attributes of a person's decision."""
    return {APPROVAL: clean(event.decision), TOOL_CALL: clean(event.call_id)}


def tool_span(tool: str, call_id: str, request_id: str = "") -> tuple[str, SpanAttributes]:
    """The name and the attributes of a call's span at its start."""
    values: SpanAttributes = {
        OPERATION: EXECUTE_TOOL,
        TOOL_NAME: clean(tool),
        TOOL_CALL: clean(call_id),
        TOOL_TYPE: FUNCTION,
    }
    if request_id:
        values[REQUEST_ID] = clean(request_id)
    return _named(EXECUTE_TOOL, tool), values


def verdict_attributes(
    verdict: CallJudged | None, answer: ApprovalAnswered | None
) -> SpanAttributes:
    """The attributes of a verdict and of a person's decision."""
    values: SpanAttributes = {}
    if verdict is not None:
        values[VERDICT] = clean(verdict.verdict)
        if verdict.code:
            values[CODE] = clean(verdict.code)
    if answer is not None:
        values[APPROVAL] = clean(answer.decision)
    return values


def outcome(result: ToolResult) -> SpanAttributes:
    """The attributes of a call's result."""
    values: SpanAttributes = {OUTCOME: SUCCESS if result.error is None else str(result.error)}
    details = result.details
    for name, key in ((AGENT_ID, "agent"), (ISOLATION, "isolation")):
        if isinstance(value := details.get(key), str) and value:
            values[name] = clean(value)
    if isinstance(code := details.get("exit_code"), int):
        values[EXIT_CODE] = code
    return values


def edge_span(agent_id: str, tool: str, request_id: str) -> tuple[str, SpanAttributes]:
    """The name and the attributes of a command's span on an edge: a tool call, or a prompt."""
    if tool == PROMPT:
        name, values = _named(INVOKE_AGENT, agent_id), SpanAttributes({OPERATION: INVOKE_AGENT})
        values[AGENT_NAME], values[REQUEST_ID] = clean(agent_id), clean(request_id)
    else:
        name, values = tool_span(tool, request_id, request_id)
    return name, {**values, AGENT_ID: clean(agent_id)}


def _named(operation: str, what: str) -> str:
    return f"{operation} {clean(what)}" if what else operation


INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
MAX_TEXT_CHARS = 8_000
"""Characters of a text."""
MAX_MESSAGES = 50
"""Messages of a request; the last ones are kept."""


class Content:
    """The messages, arguments and results of one run."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._unsent: list[Message] = []
        self._marks: dict[str, SecretFields | None] = {}

    def tools(self, tools: Iterable[Tool]) -> None:
        """Note the parameters that are secrets."""
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
