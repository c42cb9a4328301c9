"""The provider for the Chat Completions API of OpenAI, llama.cpp, vLLM, Ollama and others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import assert_never
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from evoclaw.core.events import ReplyEvent
from evoclaw.core.history import History
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
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.errors import error_response
from evoclaw.providers.exchange import ModelServer, endpoint_url, stream_reply
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.prices import Price
from evoclaw.providers.reply_builder import ReplyBuilder
from evoclaw.providers.request_encoding import (
    JoinedMessages,
    ToolEncoder,
    arguments_of,
    encode_json,
    function_tool,
    images_in,
    request_body,
    text_of,
    vendor_tool_name,
)
from evoclaw.providers.sse import EventSplitter


class OpenAIProvider:
    """A model served by an OpenAI-compatible server."""

    def __init__(
        self,
        model: str,
        *,
        http: Http,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        name: str = "openai",
        profile: Profile = Profile(),
        price: Price | None = None,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        auth = {"Authorization": f"Bearer {api_key.strip()}"} if api_key else {}
        url = endpoint_url(base_url, "/chat/completions")
        self._server = ModelServer(name, model, url, http, retry, price, {**auth, **headers})
        self._profile = profile
        self._tools = ToolEncoder(function_tool)
        # OpenAI's newer models reject the old parameter; some other servers lack the new one.
        official = urlsplit(url).hostname == "api.openai.com"
        self._limit = "max_completion_tokens" if official else "max_tokens"

    @property
    def model(self) -> str:
        """The `provider/model` name."""
        return self._server.full_name

    @property
    def profile(self) -> Profile:
        """What this model can do."""
        return self._profile

    def stream(self, request: Request) -> AsyncGenerator[ReplyEvent]:
        """Yield deltas and retries, then exactly one `Replied`."""
        model = self._server.model
        return stream_reply(
            self._server,
            self._body(request),
            EventSplitter,
            lambda: _ChunkParser(model),
            request.tools,
            request.max_retries,
        )

    def _body(self, request: Request) -> bytes:
        options: dict[str, JSON] = {
            "model": self._server.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.temperature is not None:
            options["temperature"] = request.temperature
        if request.max_tokens is not None:
            options[self._limit] = request.max_tokens
        if request.tools and request.offer_tools:
            options["tools"] = Raw(self._tools.encoded(request.tools))
            if request.must_call:
                options["tool_choice"] = "required"
        if request.stop:
            options["stop"] = list(request.stop)
        return request_body((self._messages(request.history),), options)

    def _messages(self, history: History) -> bytes | bytearray:
        if not self._profile.images:
            return history.encoded(
                "openai", lambda: JoinedMessages(partial(_encode, images=False))
            ).text
        return history.encoded("openai+images", _MessagesWithImages).text


class _MessagesWithImages:
    """Encodes messages; the images of a turn's results follow the last of these results."""

    def __init__(self) -> None:
        self._said = bytearray()
        self._pictures: list[bytes] = []

    @property
    def text(self) -> bytes | bytearray:
        """The encoded messages so far."""
        return b",".join((self._said, *self._pictures)) if self._pictures else self._said

    def add(self, message: Message) -> None:
        """Encode one message; hold its images back until the last result of the turn."""
        if self._pictures and not isinstance(message, ToolResult):
            self._said = bytearray(self.text)
            self._pictures.clear()
        if self._said:
            self._said += b","
        self._said += _encode(message, images=True)
        if picture := _images_message(message):
            self._pictures.append(picture)


def _encode(message: Message, *, images: bool) -> bytes:
    match message:
        case SystemMessage():
            return encode_json({"role": "system", "content": message.text})
        case UserMessage():
            return encode_json({"role": "user", "content": _content(message, images=images)})
        case Reply():
            return encode_json(_assistant(message))
        case ToolResult():
            return encode_json(
                {
                    "role": "tool",
                    "tool_call_id": message.call_id,
                    "content": text_of(message.blocks, images=images),
                }
            )
        case _:
            assert_never(message)


def _content(message: UserMessage, *, images: bool) -> JSON:
    found = images_in(message.blocks) if images else []
    text = text_of(message.blocks, images=images)
    if not found:
        return text
    parts = [{"type": "text", "text": text}] if text else []
    return parts + [
        {"type": "image_url", "image_url": {"url": f"data:{p.media_type};base64,{p.data}"}}
        for p in found
    ]


def _assistant(reply: Reply) -> JSON:
    message: dict[str, JSON] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": vendor_tool_name(call.name), "arguments": arguments_of(call)},
            }
            for call in reply.calls
        ]
    return message


def _images_message(message: Message) -> bytes:
    """A result's images as a user message: a tool message can contain only text."""
    if not isinstance(message, ToolResult) or not (found := images_in(message.blocks)):
        return b""
    title = f"Pictures in the result of {message.name} (call {message.call_id}):"
    parts = _content(UserMessage(tuple(found)), images=True)
    return encode_json({"role": "user", "content": [{"type": "text", "text": title}, *parts]})


class _OpenAIFunction(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, JSON] | None = None


class _OpenAICall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _OpenAIFunction | None = None


class _OpenAIDelta(Struct, gc=False):
    content: str | None = None
    tool_calls: list[_OpenAICall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class _OpenAIChoice(Struct, gc=False):
    delta: _OpenAIDelta | None = None
    message: _OpenAIDelta | None = None  # from a server that does not stream
    finish_reason: str | None = None


class _OpenAITokenDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _OpenAIUsage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _OpenAITokenDetails | None = None


class _OpenAIChunk(Struct, gc=False):
    choices: list[_OpenAIChoice] | None = None
    model: str | None = None
    usage: _OpenAIUsage | None = None
    object: str | None = None
    error: Raw = Raw()
    detail: Raw = Raw()


_CHUNK = msgspec.json.Decoder(_OpenAIChunk)

_FINISHES = {
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "content_filter": Finish.FILTERED,
    "tool_calls": Finish.CALLS,
    "function_call": Finish.CALLS,
}


class _ChunkParser:
    """Parses the chunks of the stream."""

    __slots__ = ("out",)

    def __init__(self, model: str) -> None:
        self.out = ReplyBuilder(model)

    def feed(self, payload: bytes) -> Sequence[ReplyEvent]:
        """Parse one chunk."""
        if payload[:1] == b"[" and payload.strip() == b"[DONE]":
            self.out.ended = True
            return ()
        chunk = _CHUNK.decode(payload)
        if chunk.usage is not None:
            self.out.usage = _to_usage(chunk.usage)
        if chunk.model:
            self.out.model = chunk.model
        if chunk.choices:
            return self._read_choice(chunk.choices[0])
        if _is_error(chunk):
            raise error_response(0, payload)
        return ()

    def _read_choice(self, choice: _OpenAIChoice) -> Sequence[ReplyEvent]:
        out, delta = self.out, choice.delta or choice.message
        if choice.finish_reason:
            out.finish = _FINISHES.get(choice.finish_reason, Finish.STOP)
        if delta is None:
            return ()
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._read_call(call)
        thought = delta.reasoning_content or delta.reasoning
        text = delta.content or delta.refusal
        if not thought:
            return (out.add_text(text),) if text else ()
        return (
            (out.add_reasoning(thought), out.add_text(text))
            if text
            else (out.add_reasoning(thought),)
        )

    def _read_call(self, call: _OpenAICall) -> None:
        function = call.function or _OpenAIFunction()
        arguments = function.arguments or ""
        if isinstance(arguments, dict):
            arguments = encode_json(arguments).decode()
        self.out.add_call(call.index, call.id or "", function.name or "", arguments)


def _is_error(chunk: _OpenAIChunk) -> bool:
    if chunk.object == "error" or bytes(chunk.detail):
        return True
    return bytes(chunk.error) not in (b"", b"null")


def _to_usage(usage: _OpenAIUsage) -> Usage:
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cache_read=cached or 0)
