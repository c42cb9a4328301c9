"""Names and attributes of spans: the GenAI semantic conventions, and attributes of our own.

Names of tools, agents and calls may be invented by a model: they are bounded and cleaned.
Messages, arguments and results are in `content`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.core.events import (
    ApprovalAnswered,
    CallJudged,
    ContextTrimmed,
    ReplyRetried,
    RunFinished,
    StopReason,
)
from evoclaw.core.messages import Finish, Reply, ToolResult, Usage

if TYPE_CHECKING:
    from evoclaw.core.agent import LoopSettings
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
"""The type of all our tools."""
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
"""Of one name."""
PROMPT = "prompt"

_PROVIDERS: Mapping[str, str] = {
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Where the conventions name a provider differently than we do."""
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
