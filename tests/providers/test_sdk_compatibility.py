"""The official SDKs as judges: what we send fits their types, and we hear what they hear."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Required, Union, cast, get_args, get_origin

import pytest
from pydantic import TypeAdapter
from typing_extensions import get_type_hints, is_typeddict

from evoclaw.core.messages import Message, Reply, TextBlock, ToolCall, ToolResult, user
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.http import Http
from evoclaw.providers.sse import EventSplitter
from tests.support.lazy_imports import LazyModule
from tests.support.llm_servers import (
    Answer,
    anthropic_says,
    capture,
    ollama_says,
    openai_says,
    serving,
    streamed,
)
from tests.support.provider_requests import (
    CONVERSATION,
    SEEING,
    WEATHER,
    history,
    provider_for,
    reply_of,
)

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = LazyModule("anthropic"), LazyModule("openai")

# To import the three libraries takes seconds.
pytestmark = pytest.mark.slow
# Not typed well enough for a strict checker.
OLLAMA: Any = LazyModule("ollama")
SAYS = {"openai": openai_says, "anthropic": anthropic_says, "ollama": ollama_says}
CALLS = (ToolCall("c1", "f", '{"a": [1, {"b": null}]}'), ToolCall("c2", "g", "not JSON"))
SHORT: tuple[Message, ...] = (
    user("x"),
    Reply(calls=CALLS),
    ToolResult("c1", "f", (TextBlock(""),)),
    ToolResult("c2", "g", (TextBlock("é\u2028😀"),)),
)
REQUESTS = {
    "everything": Request(history(), [WEATHER], temperature=0.2, max_tokens=99),
    "closing": Request(history(), [WEATHER], offer_tools=False),
    "plain": Request(history(user("hi"))),
    "results last": Request(history(*SHORT), [WEATHER]),
    "pictures last": Request(history(*CONVERSATION[:4])),
}


def misfits(value: Any, kind: Any, where: str = "body") -> list[str]:
    """Where a value differs from an SDK's type; keys that the type does not know count too.

    Pydantic cannot be asked: it checks the SDKs' `Iterable` fields late, and panics in unions.
    """
    origin, options = get_origin(kind), get_args(kind)
    if kind in (Any, object) or (origin is Literal and value in options):
        return []
    if origin in (Union, UnionType):
        found = [misfits(value, option, where) for option in options]
        return min(found, key=len)
    if origin in (list, Iterable):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        items = enumerate(cast("list[Any]", value))
        return [m for i, item in items for m in misfits(item, options[0], f"{where}[{i}]")]
    if is_typeddict(kind):
        return _dict_misfits(value, kind, where) if isinstance(value, dict) else [where]
    kinds = (int, float) if kind is float else (origin or kind)
    if isinstance(kinds, type | tuple) and isinstance(value, kinds):
        return []
    return [f"{where} = {value!r} is no {kind}"]


def _dict_misfits(value: Any, kind: Any, where: str) -> list[str]:
    hints, given = get_type_hints(kind, include_extras=True), cast("dict[str, Any]", value)
    # The SDKs' annotations are strings, so the class itself does not know what is `Required`.
    needed = {key for key, hint in hints.items() if get_origin(hint) is Required}
    hints = get_type_hints(kind)
    wrong = [f"{where}.{key} is missing" for key in needed - given.keys()]
    wrong += [f"{where}.{key} is not known" for key in given.keys() - hints.keys()]
    for key in given.keys() & hints.keys():
        wrong += misfits(given[key], hints[key], f"{where}.{key}")
    return wrong


async def sent(dialect: str, request: Request, profile: Profile, http: Http) -> dict[str, Any]:
    async with serving(streamed(SAYS[dialect]("ok"))) as server:
        await reply_of(provider_for(dialect, server.url, http, profile=profile), request)
    return server.requests[0].json


@pytest.mark.parametrize("profile", [SEEING, Profile()], ids=["seeing", "blind"])
@pytest.mark.parametrize("what", REQUESTS)
async def test_openai_request_bodies_match_the_sdk_types(
    what: str, profile: Profile, http: Http
) -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    body = await sent("openai", REQUESTS[what], profile, http)
    assert misfits(body, CompletionCreateParamsStreaming) == []


@pytest.mark.parametrize("profile", [SEEING, Profile()], ids=["seeing", "blind"])
@pytest.mark.parametrize("what", REQUESTS)
async def test_anthropic_request_bodies_match_the_sdk_types(
    what: str, profile: Profile, http: Http
) -> None:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    body = await sent("anthropic", REQUESTS[what], profile, http)
    assert misfits(body, MessageCreateParamsStreaming) == []
    roles = [message["role"] for message in body["messages"]]
    assert all(one != two for one, two in zip(roles, roles[1:], strict=False))


@pytest.mark.parametrize("profile", [SEEING, Profile()], ids=["seeing", "blind"])
@pytest.mark.parametrize("what", REQUESTS)
async def test_ollama_request_bodies_match_the_sdk_types(
    what: str, profile: Profile, http: Http
) -> None:
    from ollama._types import ChatRequest

    body = await sent("ollama", REQUESTS[what], profile, http)
    for message in body["messages"]:
        # The server knows ids, its client does not yet; and that one wraps pictures.
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", ()):
            call.pop("id")
        held = {**message, "images": [{"value": data} for data in message.get("images", ())]}
        kept = OLLAMA.Message.model_validate(held).model_dump(exclude_none=True)
        assert kept == {"images": [], **message}
    assert OLLAMA.Options.model_validate(body["options"]).num_ctx == 32_768
    for tool in body.get("tools", ()):
        assert OLLAMA.Tool.model_validate(tool).model_dump(exclude_none=True) == tool
    assert body.keys() <= ChatRequest.model_fields.keys()


def test_the_type_checker_of_these_tests_finds_errors() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    good = {"role": "user", "content": "x"}
    body = {"model": "m", "stream": True, "messages": [good]}
    assert misfits(body, CompletionCreateParamsStreaming) == []
    for wrong in (
        {**body, "messages": [{"role": "user"}]},
        {**body, "messages": [{"role": "nobody", "content": "x"}]},
        {**body, "messages": [{**good, "odd": 1}]},
        {**body, "messages": good},
        {**body, "temperature": "hot"},
        {"messages": [good], "stream": True},
    ):
        assert misfits(wrong, CompletionCreateParamsStreaming) != []


READINGS = {
    "openai": [
        "llamacpp__openai_answer_stream",
        "llamacpp__openai_tool_stream",
        "ollama__openai_answer_stream",
        "ollama__openai_tool_stream",
    ],
    "anthropic": [
        "llamacpp__anthropic_answer_stream",
        "llamacpp__anthropic_tool_stream",
        "ollama__anthropic_answer_stream",
        "ollama__anthropic_tool_stream",
    ],
    "ollama": ["ollama__native_answer_stream", "ollama__native_tool_stream"],
}
Heard = tuple[str, list[tuple[str, str, Any]]]


async def openai_hears(url: str) -> Heard:
    text, calls = "", dict[int, list[str]]()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(piece.index, ["", "", ""])
                    function = piece.function
                    assert function is not None
                    for i, more in enumerate((piece.id, function.name, function.arguments)):
                        call[i] += more or ""
    return text, [(id_, name, json.loads(args)) for id_, name, args in calls.values()]


async def anthropic_hears(url: str) -> Heard:
    text, calls = "", dict[int, list[str]]()
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        stream = await client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
        )
        async for item in stream:
            if item.type == "content_block_start" and item.content_block.type == "tool_use":
                calls[item.index] = [item.content_block.id, item.content_block.name, ""]
            elif item.type == "content_block_delta" and item.delta.type == "text_delta":
                text += item.delta.text
            elif item.type == "content_block_delta" and item.delta.type == "input_json_delta":
                calls[item.index][2] += item.delta.partial_json
    return text, [(id_, name, json.loads(args)) for id_, name, args in calls.values()]


async def ollama_hears(url: str) -> Heard:
    text, calls = "", list[tuple[str, str, Any]]()
    async with OLLAMA.AsyncClient(host=url) as client:
        async for part in await client.chat(
            "m", messages=[{"role": "user", "content": "x"}], stream=True
        ):
            text += part.message.content or ""
            for call in part.message.tool_calls or ():
                calls.append(("", call.function.name, dict(call.function.arguments)))
    return text, calls


HEARS = {"openai": openai_hears, "anthropic": anthropic_hears, "ollama": ollama_hears}


@pytest.mark.parametrize(
    ("dialect", "name"), [(dialect, name) for dialect, names in READINGS.items() for name in names]
)
async def test_replies_are_parsed_like_the_official_client(
    dialect: str, name: str, http: Http
) -> None:
    answer: Answer = capture(name).answers("pieces")
    async with serving(answer) as server:
        text, calls = await HEARS[dialect](server.url)
        reply = await reply_of(provider_for(dialect, server.url, http))
    ours = [(call.id, call.name, json.loads(call.arguments)) for call in reply.calls]
    if dialect == "ollama":  # its client drops the ids
        ours = [("", name, arguments) for _, name, arguments in ours]
    assert (reply.text, ours) == (text, calls)


def payloads(pieces: list[str]) -> list[bytes]:
    splitter = EventSplitter()
    return splitter.feed("".join(pieces).encode()) + splitter.end()


def test_fake_replies_match_the_official_types() -> None:
    from anthropic.types import RawMessageStreamEvent
    from openai.types.chat import ChatCompletionChunk

    for payload in payloads(openai_says("a"))[:1]:
        whole = {"created": 1, "model": "m", **json.loads(payload)}
        ChatCompletionChunk.model_validate(whole)
    adapter: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
    for payload in payloads(anthropic_says("a")):
        if json.loads(payload)["type"] != "ping":
            adapter.validate_json(payload)
    for line in ollama_says("a"):
        OLLAMA.ChatResponse.model_validate_json(line)
