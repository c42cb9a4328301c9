"""Parses chat requests: supported parameters are applied, unsupported ones are refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.messages import last_user_message, to_history
from evoclaw.api.openai.schemas import ChatRequest, ResponseFormat, ToolParam
from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.messages import (
    JSON,
    Message,
    Reply,
    SystemMessage,
    ToolResult,
    is_object,
)
from evoclaw.core.output import parse_output
from evoclaw.core.schema import compile_schema, describe_problems
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.runs.reply_options import ReplyOptions
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.orchestrator.sessions.caller_tools import (
    CALLER_PREFIX,
    MAX_CALLER_TOOLS,
    caller_tool,
    check_caller_tools,
    with_free_names,
)

NEUTRAL_VALUES: Mapping[str, tuple[JSON, ...]] = {
    "n": (None, 1),
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
MAX_STOP_TEXTS = 4
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
        problem = "" if self.tool is None else describe_problems(compile_schema(self.tool), found)
        if problem:
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
    required: tuple[str, ...] = ()
    """The caller's tools one of which must be called, by the caller's names; empty: none must."""

    def retry(self, problem: str, session_id: str) -> RunRequest:
        """The request that asks the model once more, for an answer that can be used."""
        return RunRequest(
            message=self._retry_instruction(problem),
            session_id=session_id,
            agent=self.run_request.agent,
            settings=self.run_request.settings,
            tools=self.run_request.tools,
            reply_options=self.run_request.reply_options,
        )

    def _retry_instruction(self, problem: str) -> str:
        """The instruction for a model whose answer cannot be used."""
        if self.required:
            names = ", ".join(self.required)
            return f"Your answer cannot be used: {problem}. Call one of these tools now: {names}."
        return "" if self.format is None else self.format.retry_instruction(problem)

    @property
    def holds_text_back(self) -> bool:
        """Whether a reply may still be sent back to the model, so that its text is not final."""
        return self.format is not None or bool(self.required)


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
    offered = _offered_tools(request, taken)
    settings = _settings(request, agent.settings)
    instruction = output_format.instruction() if output_format else ""
    if session_id:
        said, images = last_user_message(request.messages)
        run_request = RunRequest(
            message="\n\n".join(filter(None, (said, instruction))),
            session_id=session_id,
            agent=agent.name,
            settings=settings,
            tools=offered.tools,
            images=images,
            reply_options=offered.options,
        )
    else:
        history = offered.renamed(to_history(request.messages))
        run_request = RunRequest(
            agent=agent.name,
            title=_title(request),
            settings=settings,
            messages=(SystemMessage(instruction), *history) if instruction else history,
            tools=offered.tools,
            reply_options=offered.options,
        )
    options = request.stream_options
    return ParsedChatRequest(
        run_request,
        bool(request.stream),
        bool(options and options.include_usage),
        output_format,
        (*ignored, *(name for name in ("logprobs", "top_logprobs") if getattr(request, name))),
        offered.required,
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


class _OfferedTools(Struct, frozen=True):
    """The caller's tools of a request, and what it wants of the replies."""

    tools: tuple[Tool, ...]
    options: ReplyOptions | None
    required: tuple[str, ...]

    def renamed(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages with the names that the caller's tools have in records."""
        names = {} if self.options is None else self.options.names
        inner = {own: name for name, own in names.items() if name.startswith(CALLER_PREFIX)}
        return tuple(_with_names(message, inner) for message in messages)


def _with_names(message: Message, names: Mapping[str, str]) -> Message:
    match message:
        case Reply() if message.calls:
            calls = (replace(call, name=names.get(call.name, call.name)) for call in message.calls)
            return replace(message, calls=tuple(calls))
        case ToolResult():
            return replace(message, name=names.get(message.name, message.name))
        case _:
            return message


def _offered_tools(request: ChatRequest, taken: Iterable[str]) -> _OfferedTools:
    choice = _tool_choice(request.tool_choice)
    tools = tuple(
        tool for tool in _tools(request) if choice.names is None or tool.name in choice.names
    )
    if missing := set(choice.names or ()) - {tool.name for tool in tools}:
        raise BadRequest(
            f"`tool_choice` names tools that are not in `tools`: {', '.join(sorted(missing))}.",
            "tool_choice",
        )
    if choice.required and not tools:
        raise BadRequest("`tool_choice` requires a call, but there are no `tools`.", "tool_choice")
    free, names = with_free_names(tools, taken)
    options = ReplyOptions(
        choice.required,
        tuple(tool.name for tool in free) if choice.alone else (),
        _stop_texts(request.stop),
        names,
    )
    required = tuple(tool.name for tool in tools) if choice.required else ()
    return _OfferedTools(free, None if options == ReplyOptions() else options, required)


class _ToolChoice(Struct, frozen=True):
    """A parsed `tool_choice`."""

    names: tuple[str, ...] | None = None
    """The tools that may be called; None: all."""
    required: bool = False
    alone: bool = False
    """Whether the agent's own tools may not be called."""


def _tool_choice(value: JSON) -> _ToolChoice:
    match value:
        case None | "auto":
            return _ToolChoice()
        case "none":
            return _ToolChoice(())
        case "required":
            return _ToolChoice(required=True)
        case {"type": "function", "function": {"name": str(name)}}:
            return _ToolChoice((name,), required=True, alone=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode,
                                                         "tools": [*tools]}}:  # fmt: skip
            return _ToolChoice(tuple(map(_allowed_name, tools)), required=mode == "required")
        case _:
            raise BadRequest(
                "Unsupported `tool_choice`. Send `auto`, `none`, `required`, a function, or "
                "`allowed_tools`.",
                "tool_choice",
                "unsupported_parameter",
            )


def _allowed_name(tool: JSON) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
        case _:
            raise BadRequest("Only functions can be allowed tools.", "tool_choice")


def _stop_texts(value: JSON) -> tuple[str, ...]:
    texts: JSON = [value] if isinstance(value, str) else value or []
    try:
        found = tuple(text for text in msgspec.convert(texts, list[str]) if text)
    except msgspec.ValidationError:
        raise BadRequest("`stop` must be a text, or a list of texts.", "stop") from None
    if len(found) > MAX_STOP_TEXTS:
        raise BadRequest(f"`stop` may have at most {MAX_STOP_TEXTS} texts.", "stop")
    return found


def _tools(request: ChatRequest) -> tuple[Tool, ...]:
    given = request.tools or []
    if len(given) > MAX_CALLER_TOOLS:
        raise BadRequest(f"Too many tools: a request may have at most {MAX_CALLER_TOOLS}.", "tools")
    tools = tuple(_tool(index, tool) for index, tool in enumerate(given))
    try:
        check_caller_tools(tools)
    except SchemaError as error:
        at = next((i for i, tool in enumerate(tools) if tool.name == error.tool), 0)
        raise BadRequest(str(error), f"tools[{at}].function", "invalid_tool") from None
    except DuplicateTool as error:
        at = max(i for i, tool in enumerate(tools) if tool.name == error.name)
        raise BadRequest(str(error), f"tools[{at}].function.name", "invalid_tool") from None
    return tools


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
