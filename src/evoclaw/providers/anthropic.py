"""The provider for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

import msgspec
from msgspec import Raw, Struct

from evoclaw.core.events import ReplyEvent
from evoclaw.core.messages import (
    JSON,
    Block,
    Finish,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool
from evoclaw.providers.errors import error_response
from evoclaw.providers.exchange import ModelServer, endpoint_url, stream_reply
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.prices import Price
from evoclaw.providers.reply_builder import ReplyBuilder
from evoclaw.providers.request_encoding import (
    Buffer,
    ToolEncoder,
    arguments_of,
    encode_json,
    request_body,
    safe_id,
    text_of,
    vendor_tool_name,
)
from evoclaw.providers.sse import EventSplitter

_VERSION = "2023-06-01"
_CACHED = b',"cache_control":{"type":"ephemeral"}}'
_USER, _ASSISTANT, _END = b'{"role":"user","content":[', b'{"role":"assistant","content":[', b"]}"


class AnthropicProvider:
    """A model served by Anthropic's API, or by a compatible server.

    The temperature of a request is not sent: the API no longer accepts the parameter.
    """

    def __init__(
        self,
        model: str,
        *,
        http: Http,
        base_url: str = "https://api.anthropic.com",
        api_key: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        name: str = "anthropic",
        profile: Profile = Profile(),
        price: Price | None = None,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        auth = {"x-api-key": api_key.strip()} if api_key else {}
        url = endpoint_url(base_url.rstrip("/").removesuffix("/v1"), "/v1/messages")
        sent = {"anthropic-version": _VERSION, **auth, **headers}
        self._server = ModelServer(name, model, url, http, retry, price, sent)
        self._profile = profile
        self._tools = ToolEncoder(_tool)

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
            lambda: _EventParser(model),
            request.tools,
            request.max_retries,
        )

    def _body(self, request: Request) -> bytes:
        # No temperature: every model since Opus 4.7 rejects a request with one.
        options: dict[str, JSON] = {
            "model": self._server.model,
            "stream": True,
            "max_tokens": request.max_tokens or self._profile.max_output_tokens,
        }
        messages = request.history.encoded(
            "anthropic+images" if self._profile.images else "anthropic",
            lambda: _AnthropicMessages(images=self._profile.images),
        )
        if messages.system:
            options["system"] = Raw(b"".join((b"[", *_cached(messages.system, b"}"), b"]")))
        if request.tools:
            # Always sent: a history with calls is rejected without tools.
            tools = self._tools.encoded(request.tools)
            options["tools"] = Raw(tools[:-2] + _CACHED + b"]")
            if not request.offer_tools:
                options["tool_choice"] = {"type": "none"}
            elif request.must_call:
                options["tool_choice"] = {"type": "any"}
        if stop := [text for text in request.stop if text.strip()]:  # blank ones are rejected
            options["stop_sequences"] = stop
        return request_body(_cached(messages.text, b"}]}"), options)


class _AnthropicMessages:
    """Encodes messages; adjacent ones of one role are merged, as the API requires for results."""

    def __init__(self, *, images: bool) -> None:
        self.system, self.text = bytearray(), bytearray()
        self._images = images
        self._start: bytes = b""

    def add(self, message: Message) -> None:
        """Encode one message; an empty one is skipped."""
        if isinstance(message, SystemMessage):
            if message.text.strip():
                self.system += b"," if self.system else b""
                self.system += encode_json({"type": "text", "text": message.text})
            return
        start, blocks = _role_and_blocks(message, images=self._images)
        if not blocks:
            return
        if start == self._start:
            del self.text[-len(_END) :]
            self.text += b","
        else:
            self.text += b"," + start if self.text else start
        self._start = start
        self.text += encode_json(blocks)[1:-1] + _END


def _cached(text: bytearray, end: bytes) -> tuple[Buffer, ...]:
    """Mark the last block as the end of the cached prefix."""
    return (memoryview(text)[: -len(end)], _CACHED, end[1:]) if text else ()


def _tool(tool: Tool) -> JSON:
    return {
        "name": vendor_tool_name(tool.name),
        "description": tool.description,
        "input_schema": tool.parameters,
    }


def _role_and_blocks(
    message: UserMessage | Reply | ToolResult, *, images: bool
) -> tuple[bytes, list[JSON]]:
    match message:
        case UserMessage():
            return _USER, _blocks(message.blocks, images=images)
        case Reply():
            return _ASSISTANT, _reply(message)
        case ToolResult():
            return _USER, [_result(message, images=images)]
        case _:
            assert_never(message)


def _blocks(blocks: Sequence[Block], *, images: bool) -> list[JSON]:
    out: list[JSON] = []
    for block in blocks:
        if images and isinstance(block, ImageBlock):
            source = {"type": "base64", "media_type": block.media_type, "data": block.data}
            out.append({"type": "image", "source": source})
        elif (text := text_of((block,), images=images)).strip():  # blank text is rejected
            out.append({"type": "text", "text": text})
    return out


def _reply(reply: Reply) -> list[JSON]:
    text: list[JSON] = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
    return text + [
        {
            "type": "tool_use",
            "id": safe_id(call.id),
            "name": vendor_tool_name(call.name),
            "input": Raw(arguments_of(call).encode()),
        }
        for call in reply.calls
    ]


def _result(result: ToolResult, *, images: bool) -> JSON:
    block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": safe_id(result.call_id)}
    if content := _blocks(result.blocks, images=images):
        block["content"] = content
    if result.error is not None:
        block["is_error"] = True
    return block


class _AnthropicUsage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _AnthropicBlock(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = Raw()


class _AnthropicDelta(Struct, gc=False):
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    stop_reason: str | None = None


class _AnthropicMessage(Struct, gc=False):
    model: str | None = None
    usage: _AnthropicUsage | None = None


class _AnthropicEvent(Struct, gc=False):
    """Any event; or the complete message of a server that does not stream."""

    type: str = ""
    index: int = 0
    delta: _AnthropicDelta | None = None
    content_block: _AnthropicBlock | None = None
    message: _AnthropicMessage | None = None
    usage: _AnthropicUsage | None = None
    error: Raw = Raw()
    content: list[_AnthropicBlock] | None = None
    model: str | None = None
    stop_reason: str | None = None


_EVENT = msgspec.json.Decoder(_AnthropicEvent)

_FINISHES = {
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.FILTERED,
    "tool_use": Finish.CALLS,
}


class _EventParser:
    """Parses the events of the stream."""

    __slots__ = ("_usage", "out")

    def __init__(self, model: str) -> None:
        self.out = ReplyBuilder(model)
        self._usage = _AnthropicUsage()

    def feed(self, payload: bytes) -> Sequence[ReplyEvent]:
        """Parse one event."""
        event = _EVENT.decode(payload)
        if event.type == "content_block_delta" and event.delta is not None:
            return self._delta(event.index, event.delta)
        if event.type == "content_block_start" and event.content_block is not None:
            return self._start(event.index, event.content_block)
        if bytes(event.error) not in (b"", b"null"):
            raise error_response(0, payload)
        return self._frame(event)

    def _delta(self, index: int, delta: _AnthropicDelta) -> Sequence[ReplyEvent]:
        if delta.text:
            return (self.out.add_text(delta.text),)
        if delta.thinking:
            return (self.out.add_reasoning(delta.thinking),)
        if delta.partial_json:
            self.out.add_call(index, "", "", delta.partial_json)
        return ()

    def _start(self, index: int, block: _AnthropicBlock) -> Sequence[ReplyEvent]:
        if block.type == "tool_use":
            # Empty while the input is streamed, missing from some servers, complete from others.
            raw = bytes(block.input)
            arguments = "" if raw in (b"", b"{}", b"null") else raw.decode()
            self.out.add_call(index, block.id or "", block.name or "", arguments)
        if block.text:
            return (self.out.add_text(block.text),)
        return (self.out.add_reasoning(block.thinking),) if block.thinking else ()

    def _frame(self, event: _AnthropicEvent) -> Sequence[ReplyEvent]:
        """Parse what surrounds the blocks: the start, the end, or a complete message."""
        out, message = self.out, event.message or event
        out.model = message.model or out.model
        if message.usage is not None:
            self._count(message.usage)
        events = [e for i, b in enumerate(event.content or ()) for e in self._start(i, b)]
        stop = event.delta.stop_reason if event.delta else event.stop_reason
        if stop:
            out.finish = _FINISHES.get(stop, Finish.STOP)
        out.ended = out.ended or event.type in ("message_stop", "message")
        return events

    def _count(self, new: _AnthropicUsage) -> None:
        """Update the token counts; later values replace earlier ones."""
        old = self._usage
        for name in old.__struct_fields__:
            value: int | None = getattr(new, name)
            if value is not None:
                setattr(old, name, value)
        read, written = old.cache_read_input_tokens or 0, old.cache_creation_input_tokens or 0
        # Anthropic does not include cached tokens in `input_tokens`.
        prompt = (old.input_tokens or 0) + read + written
        self.out.usage = Usage(prompt, old.output_tokens or 0, read, written)
