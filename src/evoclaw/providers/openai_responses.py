"""The provider for OpenAI's Responses API, for servers and models that prefer it."""

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
from evoclaw.core.tools import Tool
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
    images_in,
    request_body,
    text_of,
    vendor_tool_name,
)
from evoclaw.providers.sse import EventSplitter


class OpenAIResponsesProvider:
    """A model served over the Responses API.

    The whole conversation is sent with every request, and the server is asked to store nothing.
    The API has no stop texts: those of a request are not sent.
    """

    def __init__(
        self,
        model: str,
        *,
        http: Http,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        name: str = "openai-responses",
        profile: Profile = Profile(),
        price: Price | None = None,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        auth = {"Authorization": f"Bearer {api_key.strip()}"} if api_key else {}
        url = endpoint_url(base_url, "/responses")
        self._server = ModelServer(name, model, url, http, retry, price, {**auth, **headers})
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
            lambda: _ResponseParser(model),
            request.tools,
            request.max_retries,
        )

    def _body(self, request: Request) -> bytes:
        options: dict[str, JSON] = {"model": self._server.model, "stream": True, "store": False}
        if request.temperature is not None:
            options["temperature"] = request.temperature
        if request.max_tokens is not None:
            options["max_output_tokens"] = request.max_tokens
        if request.tools and request.offer_tools:
            options["tools"] = Raw(self._tools.encoded(request.tools))
            if request.must_call:
                options["tool_choice"] = "required"
        images = self._profile.images
        dialect = "responses+images" if images else "responses"
        joined = request.history.encoded(
            dialect, lambda: JoinedMessages(partial(_encode, images=images))
        )
        return request_body((joined.text,), options, key="input")


def _tool(tool: Tool) -> JSON:
    return {
        "type": "function",
        "name": vendor_tool_name(tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _encode(message: Message, *, images: bool) -> bytes:
    match message:
        case SystemMessage():
            items = [{"type": "message", "role": "system", "content": message.text}]
        case UserMessage():
            content = _content(message.blocks, images=images)
            items = [{"type": "message", "role": "user", "content": content}]
        case Reply():
            items = _reply_items(message)
        case ToolResult():
            output = _content(message.blocks, images=images)
            items = [{"type": "function_call_output", "call_id": message.call_id, "output": output}]
        case _:
            assert_never(message)
    return b",".join(map(encode_json, items))


def _content(blocks: Sequence[Block], *, images: bool) -> JSON:
    text = text_of(blocks, images=images)
    found = images_in(blocks) if images else []
    if not found:
        return text
    parts = [{"type": "input_text", "text": text}] if text else []
    urls = (f"data:{image.media_type};base64,{image.data}" for image in found)
    return parts + [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]


def _reply_items(reply: Reply) -> list[JSON]:
    items: list[JSON] = []
    if reply.text or not reply.calls:
        items.append({"type": "message", "role": "assistant", "content": reply.text})
    items += [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": vendor_tool_name(call.name),
            "arguments": arguments_of(call),
        }
        for call in reply.calls
    ]
    return items


class _ResponsePart(Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _ResponseItem(Struct, gc=False):
    type: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[_ResponsePart] | None = None
    summary: list[_ResponsePart] | None = None


class _CachedTokens(Struct, gc=False):
    cached_tokens: int | None = None


class _ResponseUsage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _CachedTokens | None = None


class _IncompleteReason(Struct, gc=False):
    reason: str | None = None


class _ServerResponse(Struct, gc=False):
    """A response; or any event, which may contain one."""

    type: str = ""
    object: str = ""
    status: str | None = None
    model: str | None = None
    output: list[_ResponseItem] | None = None
    usage: _ResponseUsage | None = None
    incomplete_details: _IncompleteReason | None = None
    error: Raw = Raw()
    response: _ServerResponse | None = None
    output_index: int = 0
    item: _ResponseItem | None = None
    delta: str | None = None
    message: str | None = None


_RESPONSE = msgspec.json.Decoder(_ServerResponse)
_REASONING = frozenset(
    {
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning.delta",
    }
)
_ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_NO_ERROR = (b"", b"null")


class _ResponseParser:
    """Parses the events of the stream, or a whole response of a server that does not stream."""

    __slots__ = ("_with_arguments", "out")

    def __init__(self, model: str) -> None:
        self.out = ReplyBuilder(model)
        self._with_arguments: set[int] = set()
        """The output indexes of calls whose arguments were streamed."""

    def feed(self, payload: bytes) -> Sequence[ReplyEvent]:
        """Parse one event."""
        if payload.strip() == b"[DONE]":
            return ()
        event = _RESPONSE.decode(payload)
        if event.type == "response.output_text.delta" or event.type == "response.refusal.delta":
            return (self.out.add_text(event.delta),) if event.delta else ()
        if event.type in _REASONING:
            return (self.out.add_reasoning(event.delta),) if event.delta else ()
        if event.type == "response.function_call_arguments.delta" and event.delta:
            self._with_arguments.add(event.output_index)
            self.out.add_call(event.output_index, "", "", event.delta)
            return ()
        if event.type.startswith("response.output_item.") and event.item is not None:
            self._read_call(event)
            return ()
        if event.type == "error" or bytes(event.error) not in _NO_ERROR:
            raise error_response(0, payload)
        return self._read_end(event)

    def _read_call(self, event: _ServerResponse) -> None:
        item, index = event.item, event.output_index
        if item is None or item.type != "function_call":
            return
        done = event.type.endswith(".done") and index not in self._with_arguments
        arguments = (item.arguments or "") if done else ""
        self.out.add_call(index, item.call_id or "", item.name or "", arguments)

    def _read_end(self, event: _ServerResponse) -> Sequence[ReplyEvent]:
        """Parse the last event, or the only body."""
        found = event.response if event.response is not None else event
        self.out.model = found.model or self.out.model
        if event.type not in _ENDINGS and event.object != "response":
            return ()
        if bytes(found.error) not in _NO_ERROR:
            raise error_response(0, b'{"error":%b}' % bytes(found.error))
        if found.usage is not None:
            self.out.usage = _to_usage(found.usage)
        reason = found.incomplete_details.reason if found.incomplete_details else None
        self.out.finish = Finish.STOP
        if reason is not None:
            self.out.finish = Finish.FILTERED if reason == "content_filter" else Finish.LENGTH
        self.out.ended = True
        return self._read_output(found.output or ()) if event.object == "response" else ()

    def _read_output(self, items: Sequence[_ResponseItem]) -> Sequence[ReplyEvent]:
        """The output of a response that was not streamed."""
        events: list[ReplyEvent] = []
        for index, item in enumerate(items):
            if item.type == "function_call":
                self.out.add_call(index, item.call_id or "", item.name or "", item.arguments or "")
            texts = [part.text or part.refusal or "" for part in item.content or ()]
            if item.type == "message" and (text := "".join(texts)):
                events.append(self.out.add_text(text))
            thought = "".join(part.text or "" for part in item.summary or ())
            if item.type == "reasoning" and thought:
                events.append(self.out.add_reasoning(thought))
        return events


def _to_usage(usage: _ResponseUsage) -> Usage:
    details = usage.input_tokens_details
    cached = details.cached_tokens if details else None
    return Usage(usage.input_tokens or 0, usage.output_tokens or 0, cache_read=cached or 0)
