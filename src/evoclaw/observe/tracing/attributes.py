"""What spans are called and what they say: the GenAI conventions, and words of our own.

Names of tools, agents and calls may be a model's invention: they are bounded and cleaned. What
people, models and tools said is not here: see `tracing_content`.
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
SUCCESS, CUT = "success", "cut_off"
LONGEST = 128
"""Characters of a name."""
PROMPT = "prompt"

_PROVIDERS: Mapping[str, str] = {
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Where the conventions have another word than our names of models."""
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

Said = dict[str, "Value"]


class Who(Struct, frozen=True):
    """Whose run it is."""

    agent: str = ""
    session: str = ""
    tenant: str = ""


def clean(name: str) -> str:
    """A name without what may harm whoever reads it."""
    cut = name[:LONGEST]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def model_of(name: str) -> Said:
    """Who serves a model, and its name there."""
    prefix, found, model = name.partition("/")
    if not found:
        prefix, model = name, name
    return {PROVIDER: clean(_PROVIDERS.get(prefix, prefix)), REQUEST_MODEL: clean(model)}


def run_begins(run_id: str, model: str, who: Who) -> tuple[str, Said]:
    """A run: what it is called, and what is known when it begins."""
    said: Said = {OPERATION: INVOKE_AGENT, RUN_ID: clean(run_id), **model_of(model)}
    for name, value in ((AGENT_NAME, who.agent), (CONVERSATION, who.session), (TENANT, who.tenant)):
        if value:
            said[name] = clean(value)
    return _named(INVOKE_AGENT, who.agent), said


def run_ends(event: RunFinished) -> tuple[Said, str]:
    """What is known when a run has ended, and in a word how it failed, if it did."""
    said: Said = {STOP: str(event.stop), TURNS: event.turns, CALLS: event.calls}
    said |= used(event.usage)
    if event.cost is not None:
        said[COST] = event.cost
    return said, str(event.stop) if event.stop in _FAILED else ""


def request_begins(model: str, settings: LoopSettings | None) -> tuple[str, Said]:
    """A model is asked."""
    said: Said = {OPERATION: CHAT, **model_of(model)}
    if settings is not None and settings.temperature is not None:
        said[TEMPERATURE] = settings.temperature
    if settings is not None and settings.max_tokens is not None:
        said[MAX_TOKENS] = settings.max_tokens
    return _named(CHAT, str(said[REQUEST_MODEL])), said


def replied(reply: Reply) -> Said:
    """A model has answered."""
    said: Said = {FINISH_REASONS: [finish(reply)], **used(reply.usage)}
    if reply.model:
        said[RESPONSE_MODEL] = clean(reply.model)
    if reply.cost is not None:
        said[COST] = reply.cost
    return said


def finish(reply: Reply) -> str:
    """Why a model stopped writing, in the word of the conventions."""
    return _FINISHES[reply.finish]


def used(usage: Usage) -> Said:
    """How many tokens it took."""
    said: Said = {INPUT_TOKENS: usage.input, OUTPUT_TOKENS: usage.output}
    if usage.cache_read:
        said[CACHE_READ] = usage.cache_read
    if usage.cache_write:
        said[CACHE_WRITE] = usage.cache_write
    return said


def retried(event: ReplyRetried) -> Said:
    """A reply is asked for again."""
    return {ERROR_TYPE: clean(event.kind), ATTEMPT: event.attempt, WAIT: event.wait}


def trimmed(event: ContextTrimmed) -> Said:
    """What the model sees of the history was cut."""
    return used(event.usage)


def approval(event: ApprovalAnswered) -> Said:
    """A person was asked."""
    return {APPROVAL: clean(event.decision), TOOL_CALL: clean(event.call_id)}


def call_begins(tool: str, call_id: str, request_id: str = "") -> tuple[str, Said]:
    """A call: what it is called, and what is known when it begins."""
    said: Said = {
        OPERATION: EXECUTE_TOOL,
        TOOL_NAME: clean(tool),
        TOOL_CALL: clean(call_id),
        TOOL_TYPE: FUNCTION,
    }
    if request_id:
        said[REQUEST_ID] = clean(request_id)
    return _named(EXECUTE_TOOL, tool), said


def judged(verdict: CallJudged | None, answer: ApprovalAnswered | None) -> Said:
    """Why a call was let run, or not."""
    said: Said = {}
    if verdict is not None:
        said[VERDICT] = clean(verdict.verdict)
        if verdict.code:
            said[CODE] = clean(verdict.code)
    if answer is not None:
        said[APPROVAL] = clean(answer.decision)
    return said


def outcome(result: ToolResult) -> Said:
    """What became of a call."""
    said: Said = {OUTCOME: SUCCESS if result.error is None else str(result.error)}
    details = result.details
    for name, key in ((AGENT_ID, "agent"), (ISOLATION, "isolation")):
        if isinstance(value := details.get(key), str) and value:
            said[name] = clean(value)
    if isinstance(code := details.get("exit_code"), int):
        said[EXIT_CODE] = code
    return said


def on_device(agent_id: str, tool: str, request_id: str) -> tuple[str, Said]:
    """What a device was asked to do: a call of a tool, or a question for its own model."""
    if tool == PROMPT:
        name, said = _named(INVOKE_AGENT, agent_id), Said({OPERATION: INVOKE_AGENT})
        said[AGENT_NAME], said[REQUEST_ID] = clean(agent_id), clean(request_id)
    else:
        name, said = call_begins(tool, request_id, request_id)
    return name, {**said, AGENT_ID: clean(agent_id)}


def _named(operation: str, what: str) -> str:
    return f"{operation} {clean(what)}" if what else operation
