"""The provider for Ollama's chat API: one JSON object a line, arguments as JSON objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import assert_never

import msgspec
from msgspec import Raw, Struct

from evoclaw.core.events import ReplyEvent
from evoclaw.core.messages import (
    JSON,
    Block,
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
from evoclaw.providers.sse import LineSplitter

MAX_CONTEXT_TOKENS = 32_768
"""The largest context to request: the server allocates memory for all of it."""


class OllamaProvider:
    """A model served by Ollama."""

    def __init__(
        self,
        model: str,
        *,
        http: Http,
        base_url: str = "http://127.0.0.1:11434",
        api_key: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        name: str = "ollama",
        profile: Profile = Profile(),
        price: Price | None = None,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        auth = {"Authorization": f"Bearer {api_key.strip()}"} if api_key else {}
        url = endpoint_url(base_url, "/api/chat")
        self._server = ModelServer(name, model, url, http, retry, price, {**auth, **headers})
        self._profile = profile
        self._tools = ToolEncoder(function_tool)

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
            LineSplitter,
            lambda: _LineParser(model),
            request.tools,
            request.max_retries,
        )

    def _body(self, request: Request) -> bytes:
        settings: dict[str, JSON] = {
            # The server's default is small, and it truncates a longer prompt silently.
            "num_ctx": min(self._profile.context_tokens, MAX_CONTEXT_TOKENS),
            # The server's default is no limit.
            "num_predict": request.max_tokens or self._profile.max_output_tokens,
        }
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.stop:
            settings["stop"] = list(request.stop)
        options: dict[str, JSON] = {
            "model": self._server.model,
            "stream": True,
            "options": settings,
        }
        if request.tools and request.offer_tools:
            options["tools"] = Raw(self._tools.encoded(request.tools))
        images = self._profile.images
        dialect = "ollama+images" if images else "ollama"
        joined = request.history.encoded(
            dialect, lambda: JoinedMessages(partial(_encode, images=images))
        )
        return request_body((joined.text,), options)


def _encode(message: Message, *, images: bool) -> bytes:
    match message:
        case SystemMessage():
            return encode_json({"role": "system", "content": message.text})
        case UserMessage():
            return encode_json({"role": "user", **_content(message.blocks, images=images)})
        case Reply():
            return encode_json(_assistant(message))
        case ToolResult():
            return encode_json(
                {
                    "role": "tool",
                    "tool_name": vendor_tool_name(message.name),
                    "tool_call_id": message.call_id,
                    **_content(message.blocks, images=images),
                }
            )
        case _:
            assert_never(message)


def _content(blocks: Sequence[Block], *, images: bool) -> dict[str, JSON]:
    content: dict[str, JSON] = {"content": text_of(blocks, images=images)}
    if images and (found := images_in(blocks)):
        content["images"] = [image.data for image in found]
    return content


def _assistant(reply: Reply) -> JSON:
    message: dict[str, JSON] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "function": {
                    "name": vendor_tool_name(call.name),
                    "arguments": Raw(arguments_of(call).encode()),
                },
            }
            for call in reply.calls
        ]
    return message


class _OllamaFunction(Struct, gc=False):
    name: str = ""
    arguments: Raw = Raw()


class _OllamaCall(Struct, gc=False):
    id: str | None = None
    function: _OllamaFunction | None = None


class _OllamaMessage(Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_OllamaCall] | None = None


class _OllamaLine(Struct, gc=False):
    message: _OllamaMessage | None = None
    model: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Raw = Raw()


_LINE = msgspec.json.Decoder(_OllamaLine)


class _LineParser:
    """Parses the lines of the stream."""

    __slots__ = ("out",)

    def __init__(self, model: str) -> None:
        self.out = ReplyBuilder(model)

    def feed(self, payload: bytes) -> Sequence[ReplyEvent]:
        """Parse one line."""
        line, out = _LINE.decode(payload), self.out
        if bytes(line.error) not in (b"", b"null"):
            raise error_response(0, payload)
        if line.model:
            out.model = line.model
        if line.done:
            out.ended = True
            # The reason is `stop` also when it stopped for calls.
            out.finish = Finish.LENGTH if line.done_reason == "length" else Finish.STOP
            out.usage = Usage(line.prompt_eval_count or 0, line.eval_count or 0)
        return self._read_message(line.message) if line.message is not None else ()

    def _read_message(self, message: _OllamaMessage) -> Sequence[ReplyEvent]:
        out = self.out
        for call in message.tool_calls or ():
            function = call.function or _OllamaFunction()
            out.add_call(None, call.id or "", function.name, _text(function.arguments))
        if not message.thinking:
            return (out.add_text(message.content),) if message.content else ()
        thought = out.add_reasoning(message.thinking)
        return (thought, out.add_text(message.content)) if message.content else (thought,)


def _text(arguments: Raw) -> str:
    """Arguments as JSON text; a server may send that text as a string."""
    raw = bytes(arguments)
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str)
    return "{}" if raw in (b"", b"null") else raw.decode()
