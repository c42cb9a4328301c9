"""Encode a request: JSON, tool names, and the text of blocks; shared by all HTTP providers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2s
from typing import cast

import msgspec

from evoclaw.core.messages import JSON, Block, ImageBlock, Message, Reply, ToolCall
from evoclaw.core.tools import Tool
from evoclaw.providers.reply_builder import is_json_object

Buffer = bytes | bytearray | memoryview

_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
MAX_VENDOR_NAME_CHARS = 64
"""The longest name of a tool that OpenAI and Anthropic accept."""


class ToolEncoder:
    """Encodes a list of tools, and caches the result while the same list is offered."""

    __slots__ = ("_encode", "_text", "_tools")

    def __init__(self, encode: Callable[[Tool], JSON]) -> None:
        self._encode = encode
        self._tools: Sequence[Tool] = ()
        self._text = b"[]"

    def encoded(self, tools: Sequence[Tool]) -> bytes:
        """The tools as a JSON array."""
        if tools is not self._tools:
            self._text = encode_json([self._encode(tool) for tool in tools])
            self._tools = tools
        return self._text


class JoinedMessages:
    """Encoded messages as the inside of a JSON array, to which only new messages are appended."""

    __slots__ = ("_encode", "text")

    def __init__(self, encode: Callable[[Message], bytes]) -> None:
        self._encode = encode
        self.text = bytearray()

    def add(self, message: Message) -> None:
        """Encode one message."""
        if self.text:
            self.text += b","
        self.text += self._encode(message)


def request_body(
    messages: Iterable[Buffer], options: Mapping[str, JSON], *, key: str = "messages"
) -> bytes:
    """The body of a request: its messages, as pieces of one JSON array, and its options.

    Joined in one step: a long conversation is copied only once.
    """
    start = f'{{"{key}":['.encode()
    return b"".join((start, *messages, b"],", encode_json(options)[1:]))


def encode_json(value: JSON) -> bytes:
    """Encode to JSON; lone surrogates, which tools may return, become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_surrogates(value))


def function_tool(tool: Tool) -> JSON:
    """A tool in the format of OpenAI and Ollama."""
    return {
        "type": "function",
        "function": {
            "name": vendor_tool_name(tool.name),
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def arguments_of(call: ToolCall) -> str:
    """A call's arguments as the text of a JSON object.

    Malformed arguments become `{}`: the call's result reported the mistake to the model, and
    servers reject a conversation that contains it.
    """
    return call.arguments if is_json_object(call.arguments) else "{}"


def safe_id(call_id: str) -> str:
    """A call's id with only the characters that every server accepts."""
    return _INVALID_NAME_CHARS.sub("_", call_id) or "_"


@lru_cache(maxsize=4_096)
def vendor_tool_name(name: str) -> str:
    """A tool's name as every vendor accepts it: letters, digits, `_` and `-`, at most 64.

    A name with other characters, such as `read@pi`, gets a suffix that depends only on the name: it
    stays the same in every turn, and two tools do not become one.
    """
    if len(name) <= MAX_VENDOR_NAME_CHARS and name and not _INVALID_NAME_CHARS.search(name):
        return name
    digest = blake2s(name.encode(errors="replace"), digest_size=3).hexdigest()
    kept = MAX_VENDOR_NAME_CHARS - len(digest) - 1
    return f"{_INVALID_NAME_CHARS.sub('_', name)[:kept]}_{digest}"


def own_tool_names(tools: Iterable[Tool]) -> dict[str, str]:
    """The names of tools by the name that the vendor gets, where the two differ."""
    return {
        vendor: tool.name for tool in tools if (vendor := vendor_tool_name(tool.name)) != tool.name
    }


def with_own_tool_names(reply: Reply, tools: Iterable[Tool]) -> Reply:
    """The reply with the tools' own names in its calls."""
    if not reply.calls or not (own := own_tool_names(tools)):
        return reply
    calls = tuple(
        msgspec.structs.replace(call, name=own.get(call.name, call.name)) for call in reply.calls
    )
    return msgspec.structs.replace(reply, calls=calls)


def text_of(blocks: Iterable[Block], *, images: bool) -> str:
    """The text of blocks without images; with a note for each image that the model cannot see."""
    if images:
        return "\n".join(block.text for block in blocks if not isinstance(block, ImageBlock))
    return "\n".join(
        f"[a picture ({block.media_type}) was left out: this model cannot see pictures]"
        if isinstance(block, ImageBlock)
        else block.text
        for block in blocks
    )


def images_in(blocks: Iterable[Block]) -> list[ImageBlock]:
    """The images among blocks."""
    return [block for block in blocks if isinstance(block, ImageBlock)]


def _replace_surrogates(value: JSON) -> JSON:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        items = cast("dict[str, JSON]", value).items()
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in items}
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in cast("list[JSON]", value)]
    return value
