"""Ask a provider in a test, and what to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from evoclaw.core.errors import ErrorKind, ProviderError
from evoclaw.core.events import Replied, ReplyEvent
from evoclaw.core.history import History
from evoclaw.core.messages import (
    ErrorBlock,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    UserMessage,
    user,
)
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool
from evoclaw.providers.anthropic import AnthropicProvider
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.ollama import OllamaProvider
from evoclaw.providers.openai import OpenAIProvider

AT_ONCE = RetryPolicy(attempts=3, base=0.0)
"""Three attempts without waiting."""
SEEING = Profile(images=True)
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

WEATHER = Tool(
    "get_temperature",
    "Get the current temperature in a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "City name"}},
        "required": ["city"],
    },
)

CONVERSATION: tuple[Message, ...] = (
    SystemMessage("You know the weather."),
    UserMessage((TextBlock("Oslo and Rome?"), ImageBlock("image/png", PIXEL))),
    Reply(
        text="Let me look.",
        calls=(
            ToolCall("call_1", "get_temperature", '{"city": "Oslo"}'),
            ToolCall("call_2", "get_temperature", '{"city": "Ro'),
        ),
        reasoning="They want two cities.",
    ),
    ToolResult("call_1", "get_temperature", (TextBlock("-4 C"), ImageBlock("image/png", PIXEL))),
    ToolResult(
        "call_2",
        "get_temperature",
        (ErrorBlock(ErrorKind.INVALID_PARAMS, "the arguments are not JSON; ask again"),),
        error=ErrorKind.INVALID_PARAMS,
    ),
    user("And now?"),
)


def history(*messages: Message) -> History:
    """The conversation given, or one of every kind of message."""
    return History(messages or CONVERSATION)


def simple_request(
    text: str = "hello", *, tools: Sequence[Tool] = (), offer_tools: bool = True
) -> Request:
    """One question."""
    return Request(history(user(text)), tools, offer_tools)


AnyProvider: TypeAlias = OpenAIProvider | AnthropicProvider | OllamaProvider


def provider_for(dialect: str, url: str, http: Http, **more: Any) -> AnyProvider:
    """A provider that speaks a dialect to a server."""
    more.setdefault("retry", AT_ONCE)
    if dialect == "openai":
        return OpenAIProvider("m", http=http, base_url=f"{url}/v1", **more)
    if dialect == "anthropic":
        return AnthropicProvider("m", http=http, base_url=url, **more)
    return OllamaProvider("m", http=http, base_url=url, **more)


async def events_of(provider: Provider, request: Request | None = None) -> list[ReplyEvent]:
    """Everything a provider says, within a bound."""
    async with asyncio.timeout(60):
        return [event async for event in provider.stream(request or simple_request())]


async def reply_of(provider: Provider, request: Request | None = None) -> Reply:
    """The reply."""
    return (await deltas_and_reply(provider, request))[1]


async def deltas_and_reply(
    provider: Provider, request: Request | None = None
) -> tuple[list[ReplyEvent], Reply]:
    """What came before the reply, and the reply."""
    *before, last = await events_of(provider, request)
    assert isinstance(last, Replied)
    return before, last.reply


async def error_of(provider: Provider, request: Request | None = None) -> ProviderError:
    """The error that a provider must raise."""
    try:
        events = await events_of(provider, request)
    except ProviderError as error:
        return error
    raise AssertionError(f"a reply came instead of an error: {events}")
