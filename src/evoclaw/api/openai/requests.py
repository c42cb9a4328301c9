"""Parses chat requests: supported parameters are applied, unsupported ones are refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.messages import last_user_message, to_history
from evoclaw.api.openai.schemas import ChatRequest, ResponseFormat, ToolParam
from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.messages import JSON, SystemMessage, is_object
from evoclaw.core.output import parse_output
from evoclaw.core.schema import compile_schema, describe_problems
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.orchestrator.sessions.caller_tools import (
    MAX_CALLER_TOOLS,
    ToolNameTaken,
    caller_tool,
    check_caller_tools,
)

if TYPE_CHECKING:
    from jsonschema_rs import Validator

NEUTRAL_VALUES: Mapping[str, tuple[JSON, ...]] = {
    "n": (None, 1),
    "stop": (None, [], ""),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "modalities": (None, [], ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
}
"""Unsupported parameters, and the values that make no difference."""
ALTERNATIVES = {
    "n": "send one request for each answer",
    "functions": "send `tools`",
    "function_call": "send `tool_choice`",
}
UNREPORTED_PARAMETERS = frozenset(
    {"user", "store", "metadata", "safety_identifier", "prompt_cache_key"}
)
"""Ignored parameters that do not affect the answer, so that the response does not list them."""
_JSON_INSTRUCTION = (
    "Answer with one JSON object and nothing else: no words around it, no code fences."
)


class OutputFormat(Struct, frozen=True):
    """The required format of the answer: a JSON object, with or without a JSON Schema."""

    tool: Tool | None = None
    """Carries the JSON Schema, if there is one."""

    def instruction(self) -> str:
        """The instruction for the model."""
        if self.tool is None:
            return _JSON_INSTRUCTION
        schema = msgspec.json.encode(self.tool.parameters).decode()
        return f"{_JSON_INSTRUCTION} It must fit this JSON Schema: {schema}"

    def retry_instruction(self, problem: str) -> str:
        """The instruction for a model whose answer did not fit."""
        return f"Your answer cannot be used: {problem}. {self.instruction()}"

    def read(self, text: str) -> tuple[str, str]:
        """The answer as JSON text, and what is wrong with it; one of both is empty."""
        found = parse_output(text, ("",))
        if found == {"": text}:
            return "", "it is not a JSON object"
        if self.tool is not None:
            validator: Validator = compile_schema(self.tool)
            if problem := describe_problems(validator, found):
                return "", problem
        return msgspec.json.encode(found).decode(), ""


class ParsedChatRequest(Struct, frozen=True):
    """A parsed chat request: the run to start, and how to respond."""

    run_request: RunRequest
    stream: bool
    include_usage: bool
    format: OutputFormat | None
    ignored: tuple[str, ...]
    """The parameters of the request that were ignored."""


def ignored_parameters(body: bytes) -> tuple[str, ...]:
    """The parameters of a request body that are ignored."""
    raw: JSON = msgspec.json.decode(body)
    known = {*ChatRequest.__struct_fields__, *UNREPORTED_PARAMETERS}
    return tuple(sorted(name[:40] for name in raw if name not in known and name.isidentifier()))


def parse_chat_request(
    request: ChatRequest,
    ignored: tuple[str, ...],
    agent: Agent,
    *,
    taken: Iterable[str] = (),
    session_id: str = "",
) -> ParsedChatRequest:
    """Parse a chat request; `BadRequest` if it asks for something unsupported.

    Args:
        request: The body of the request.
        ignored: The names of the ignored parameters.
        agent: The agent to invoke.
        taken: The names of the agent's own tools.
        session_id: The session to continue; empty starts a new one with the messages as history.
    """
    _refuse_unsupported(request)
    output_format = _format(request.response_format)
    tools = _tools(request, taken)
    settings = _settings(request, agent.settings)
    instruction = output_format.instruction() if output_format else ""
    if session_id:
        said, images = last_user_message(request.messages)
        run_request = RunRequest(
            message="\n\n".join(filter(None, (said, instruction))),
            session_id=session_id,
            agent=agent.name,
            settings=settings,
            tools=tools,
            images=images,
        )
    else:
        history = to_history(request.messages)
        run_request = RunRequest(
            agent=agent.name,
            title=_title(request),
            settings=settings,
            messages=(SystemMessage(instruction), *history) if instruction else history,
            tools=tools,
        )
    options = request.stream_options
    return ParsedChatRequest(
        run_request,
        bool(request.stream),
        bool(options and options.include_usage),
        output_format,
        ignored,
    )


def _refuse_unsupported(request: ChatRequest) -> None:
    for name, neutral in NEUTRAL_VALUES.items():
        if getattr(request, name) not in neutral:
            instead = ALTERNATIVES.get(name, "leave it out")
            raise BadRequest(
                f"{name!r} is not supported: {instead}.", name, "unsupported_parameter"
            )
    if request.stream_options is not None and not request.stream:
        raise BadRequest("`stream_options` requires `stream: true`.", "stream_options")


def _settings(request: ChatRequest, defaults: LoopSettings) -> LoopSettings:
    changed: dict[str, JSON] = {}
    if request.temperature is not None:
        changed["temperature"] = request.temperature
    limit = request.max_completion_tokens or request.max_tokens
    if limit is not None:
        changed["max_tokens"] = (
            limit if defaults.max_tokens is None else min(limit, defaults.max_tokens)
        )
    if request.parallel_tool_calls is False:
        changed["max_calls_per_turn"] = 1
    return replace(defaults, **changed)


def _tools(request: ChatRequest, taken: Iterable[str]) -> tuple[Tool, ...]:
    """The caller's tools; empty for `tool_choice: none`."""
    given = request.tools or []
    if len(given) > MAX_CALLER_TOOLS:
        raise BadRequest(f"Too many tools: a request may have at most {MAX_CALLER_TOOLS}.", "tools")
    tools = tuple(_tool(index, tool) for index, tool in enumerate(given))
    try:
        check_caller_tools(tools, taken)
    except SchemaError as error:
        at = next((i for i, tool in enumerate(tools) if tool.name == error.tool), 0)
        raise BadRequest(str(error), f"tools[{at}].function", "invalid_tool") from None
    except (DuplicateTool, ToolNameTaken) as error:
        at = max(i for i, tool in enumerate(tools) if tool.name == error.name)
        raise BadRequest(str(error), f"tools[{at}].function.name", "invalid_tool") from None
    match request.tool_choice:
        case None | "auto":
            return tools
        case "none":
            return ()
        case _:
            raise BadRequest(
                "A model cannot be forced to call a tool. Send `auto` or `none`.",
                "tool_choice",
                "unsupported_parameter",
            )


def _tool(index: int, given: ToolParam) -> Tool:
    if given.type != "function" or given.function is None:
        raise BadRequest(
            f"Tools of type {given.type!r} are not supported. Send `function`.",
            f"tools[{index}].type",
            "unsupported_parameter",
        )
    function = given.function
    return caller_tool(function.name, function.description or "", function.parameters)


def _format(wanted: ResponseFormat | None) -> OutputFormat | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return OutputFormat()
    given = wanted.json_schema
    if wanted.type != "json_schema" or given is None or not is_object(given.definition):
        raise BadRequest(
            "Unsupported format. Send `text`, `json_object`, or `json_schema` with a `schema`.",
            "response_format",
        )
    tool = Tool(given.name or "response", "", given.definition)
    try:
        compile_schema(tool)
    except SchemaError as error:
        raise BadRequest(error.problem, "response_format.json_schema.schema") from None
    return OutputFormat(tool)


def _title(request: ChatRequest) -> str:
    """The title of the session in lists."""
    for message in reversed(request.messages):
        if message.role == "user":
            content = message.content
            text = content if isinstance(content, str) else ""
            if isinstance(content, list):
                text = " ".join(part.text for part in content if part.text)
            return f"chat: {' '.join(text.split())[:80]}"
    return "chat"
