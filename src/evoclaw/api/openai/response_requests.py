"""Converts requests of OpenAI's Responses API to chat requests, so that both APIs read one form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.schemas import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionParam,
    ImageUrl,
    ResponseFormat,
    SchemaParam,
    ToolCallParam,
    ToolParam,
)
from evoclaw.core.messages import JSON, is_array, is_object

CUSTOM_PARAMETERS: dict[str, JSON] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The parameters of a `custom` tool: a model writes its input as one text."""
MAX_INPUT_ITEMS = 10_000
ECHOED_DEFAULTS: Mapping[str, JSON] = {
    "instructions": None,
    "previous_response_id": None,
    "tools": [],
    "tool_choice": "auto",
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
    "reasoning": {"effort": None, "summary": None},
    "metadata": {},
    "store": True,
    "background": False,
    "service_tier": "default",
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""The parameters that a response repeats, and their values if the request has none."""
_IGNORED = frozenset({"top_p", "max_tool_calls", "presence_penalty", "frequency_penalty"})
_MESSAGE_INDEX = re.compile(r"messages\[(\d+)\]")


class ResponseRequest(Struct, frozen=True):
    """The body of a request to create a response."""

    model: str
    """The name of the agent; `GET /v1/models` lists them."""
    input: str | Annotated[list[dict[str, JSON]], Meta(max_length=MAX_INPUT_ITEMS)] = ""
    """A text, or input items: messages, function calls and their outputs."""
    instructions: str | None = None
    """Added after the agent's own prompt."""
    previous_response_id: str | None = None
    """The response that this one continues; its conversation is stored here."""
    stream: bool | None = None
    """Send the response as a stream of events."""
    store: bool | None = None
    """False: the response cannot be retrieved or continued later. Default: true."""
    background: bool | None = None
    """Answer at once with the status `queued`; retrieve the response later."""
    tools: list[dict[str, JSON]] | None = None
    """Tools that the caller runs: `function` and `custom`; hosted tools are ignored."""
    tool_choice: JSON = None
    """`auto`, `none`, `required`, a function that must be called, or `allowed_tools`."""
    parallel_tool_calls: bool | None = None
    """False: at most one call in each reply."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Overrides the temperature of the agent."""
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Lowers the limit of tokens in one reply; cannot raise it."""
    text: dict[str, JSON] | None = None
    """`format`: `text`, `json_object` or `json_schema`."""
    reasoning: dict[str, JSON] | None = None
    """Repeated in the response; the agent's model decides."""
    metadata: dict[str, str] | None = None
    """Repeated in the response."""
    top_p: float | None = None
    """Ignored."""
    presence_penalty: float | None = None
    """Ignored."""
    frequency_penalty: float | None = None
    """Ignored."""
    top_logprobs: int | None = None
    """Ignored."""
    max_tool_calls: int | None = None
    """Ignored; the agent's own limits apply."""
    truncation: str | None = None
    """Repeated in the response; a long conversation is always trimmed."""
    include: list[str] | None = None
    """Ignored."""
    service_tier: str | None = None
    """Ignored."""
    user: str | None = None
    """Ignored; the token identifies the user."""
    safety_identifier: str | None = None
    """Ignored."""
    prompt_cache_key: str | None = None
    """Ignored."""
    conversation: JSON = None
    """Not supported; use `previous_response_id`."""
    prompt: JSON = None
    """Not supported; use `instructions`."""

    @property
    def is_stored(self) -> bool:
        """Whether the response can be retrieved and continued later."""
        return self.store is not False


class ConvertedRequest(Struct, frozen=True):
    """A request for a response as a chat request."""

    chat: ChatRequest
    echo: dict[str, JSON]
    """The parameters that the response repeats."""
    ignored: tuple[str, ...]
    """What was ignored."""
    origins: tuple[int, ...]
    """For each message of the chat request, the index of its input item."""

    def located(self, error: BadRequest) -> BadRequest:
        """The error with the position in this request instead of the one in the chat request."""
        where = error.param or ""
        found = _MESSAGE_INDEX.match(where)
        if found is not None:
            index = int(found.group(1))
            item = self.origins[index] if index < len(self.origins) else index
            where = f"input[{item}]{where[found.end() :]}"
        else:
            names = {"messages": "input", "response_format": "text.format"}
            first, dot, rest = where.partition(".")
            where = names.get(first, first) + dot + rest
        return BadRequest(str(error), where or None, error.code, status=error.status)


def convert_request(request: ResponseRequest) -> ConvertedRequest:
    """Convert a request; `BadRequest` if it asks for something unsupported."""
    _refuse_unsupported(request)
    tools, hosted = _tools(request.tools or ())
    items = _Items()
    if request.instructions:
        items.add_instructions(request.instructions)
    if isinstance(request.input, str):
        items.add(0, {"role": "user", "content": request.input})
    else:
        for index, item in enumerate(request.input):
            items.add(index, item)
    chat = ChatRequest(
        request.model,
        items.messages or [ChatMessage("user")],
        stream=request.stream,
        temperature=request.temperature,
        max_completion_tokens=request.max_output_tokens,
        response_format=_response_format(request.text),
        tools=tools or None,
        tool_choice=_tool_choice(request.tool_choice) if tools else None,
        parallel_tool_calls=request.parallel_tool_calls,
    )
    ignored = [*hosted, *items.ignored]
    ignored += [name for name in sorted(_IGNORED) if getattr(request, name) is not None]
    return ConvertedRequest(chat, _echo(request), tuple(ignored), tuple(items.origins))


def custom_tool_names(tools: Sequence[JSON]) -> frozenset[str]:
    """The names of the custom tools among the tools of a request."""
    return frozenset(tool["name"] for tool in tools if tool.get("type") == "custom")


def _refuse_unsupported(request: ResponseRequest) -> None:
    for name, instead in (("conversation", "previous_response_id"), ("prompt", "instructions")):
        if getattr(request, name) is not None:
            raise BadRequest(
                f"{name!r} is not supported: send `{instead}`.", name, "unsupported_parameter"
            )
    if request.background and not request.is_stored:
        raise BadRequest("`background` requires `store`: it is retrieved later.", "background")


def _echo(request: ResponseRequest) -> dict[str, JSON]:
    given = {name: getattr(request, name) for name in ECHOED_DEFAULTS}
    found = {n: ECHOED_DEFAULTS[n] if value is None else value for n, value in given.items()}
    if "format" not in found["text"]:
        found["text"] = {"format": {"type": "text"}, **found["text"]}
    found["tools"] = [
        {"strict": None, "description": None, "parameters": None, **tool}
        if tool.get("type") == "function"
        else tool
        for tool in found["tools"]
    ]
    return found


def _tools(given: Sequence[dict[str, JSON]]) -> tuple[list[ToolParam], list[str]]:
    """The caller's tools, and what is ignored: tools that OpenAI itself would run."""
    tools: list[ToolParam] = []
    hosted: list[str] = []
    for index, tool in enumerate(given):
        kind, name = tool.get("type"), tool.get("name")
        if kind not in ("function", "custom"):
            hosted.append(f"tools.{kind}")
            continue
        if not isinstance(name, str):
            raise BadRequest(f"A {kind} needs a `name`.", f"tools[{index}].name")
        parameters = CUSTOM_PARAMETERS if kind == "custom" else tool.get("parameters")
        try:
            function = msgspec.convert(
                {"name": name, "description": tool.get("description"), "parameters": parameters},
                FunctionParam,
            )
        except msgspec.ValidationError as error:
            raise BadRequest(f"The tool cannot be read: {error}", f"tools[{index}]") from None
        tools.append(ToolParam("function", function))
    return tools, hosted


def _tool_choice(value: JSON) -> JSON:
    match value:
        case {"type": "function" | "custom", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": mode, "tools": [*tools]}:
            allowed = [_tool_choice(tool) for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        case _:
            return value


def _response_format(text: dict[str, JSON] | None) -> ResponseFormat | None:
    wanted = (text or {}).get("format")
    if wanted is None:
        return None
    if not is_object(wanted) or not isinstance(wanted.get("type"), str):
        raise BadRequest("`format` needs a `type`.", "text.format")
    if wanted["type"] != "json_schema":
        return ResponseFormat(wanted["type"])
    schema = wanted.get("schema")
    if not is_object(schema):
        raise BadRequest("`json_schema` needs a `schema`.", "text.format.schema")
    return ResponseFormat("json_schema", SchemaParam(str(wanted.get("name") or ""), schema))


class _Items:
    """Converts input items to chat messages; adjacent items of one reply become one message."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.origins: list[int] = []
        self.ignored: list[str] = []

    def add_instructions(self, text: str) -> None:
        """Add the instructions before the items."""
        self._append(0, ChatMessage("system", text))

    def add(self, index: int, item: dict[str, JSON]) -> None:
        """Add one item."""
        kind = item.get("type") or "message"
        match kind:
            case "message":
                self._append(index, _message(index, item))
            case "function_call" | "custom_tool_call":
                self._add_call(index, item, _text(index, item, "call_id"))
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(index, _text(index, item, "call_id"), item.get("output"))
            case "mcp_call":
                call_id = _text(index, item, "id")
                self._add_call(index, item, call_id)
                self._add_output(index, call_id, item.get("output") or _error_of(item))
            case "reasoning":
                pass  # for the caller; a model does not get it back
            case _:
                self.ignored.append(f"input.{kind}")

    def _append(self, index: int, message: ChatMessage) -> None:
        self.messages.append(message)
        self.origins.append(index)

    def _add_call(self, index: int, item: dict[str, JSON], call_id: str) -> None:
        arguments = item.get("arguments")
        if item.get("type") == "custom_tool_call":
            arguments = msgspec.json.encode({"input": item.get("input", "")}).decode()
        function = FunctionCall(_text(index, item, "name"), str(arguments or "{}"))
        call = ToolCallParam(call_id, function)
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            self.messages[-1] = replace(last, tool_calls=[*(last.tool_calls or ()), call])
        else:
            self._append(index, ChatMessage("assistant", tool_calls=[call]))

    def _add_output(self, index: int, call_id: str, output: JSON) -> None:
        content: JSON = output
        if is_object(output) or not isinstance(output, str | list):
            content = msgspec.json.encode(output).decode()
        elif is_array(output):
            content = _parts(index, output)
        self._append(index, ChatMessage("tool", content, tool_call_id=call_id))


def _error_of(item: dict[str, JSON]) -> JSON:
    """The error of a call that the agent made itself; empty if it has none."""
    error: JSON = item.get("error")
    return error.get("content", "") if is_object(error) else ""


def _text(index: int, item: dict[str, JSON], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"The item needs a `{name}`.", f"input[{index}].{name}")
    return value


def _message(index: int, item: dict[str, JSON]) -> ChatMessage:
    content: JSON = item.get("content")
    if is_array(content):
        content = _parts(index, content)
    elif not isinstance(content, str):
        raise BadRequest("A message needs a `content`.", f"input[{index}].content")
    return ChatMessage(_text(index, item, "role"), content)


def _parts(index: int, parts: Sequence[JSON]) -> list[ContentPart]:
    return [_part(f"input[{index}].content[{at}]", part) for at, part in enumerate(parts)]


def _part(where: str, part: JSON) -> ContentPart:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return ContentPart("text", text)
        case {"type": "refusal", "refusal": str(text)}:
            return ContentPart("refusal", refusal=text)
        case {"type": "input_image", "image_url": str(url)}:
            return ContentPart("image_url", image_url=ImageUrl(url))
        case _:
            raise BadRequest(
                "Unsupported content. Send `input_text`, or `input_image` with a data URL as "
                "`image_url`.",
                where,
            )
