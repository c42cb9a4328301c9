"""Anthropic's dialect: what is sent, and how replies are put together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evoclaw.core.events import ReasoningDelta, TextDelta
from evoclaw.core.messages import (
    Finish,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    user,
)
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.anthropic import AnthropicProvider
from evoclaw.providers.http import Http
from tests.support.llm_servers import anthropic_says, event, serving, streamed
from tests.support.provider_requests import (
    PIXEL,
    SEEING,
    WEATHER,
    deltas_and_reply,
    history,
    provider_for,
    reply_of,
    simple_request,
)

HINT = {"type": "ephemeral"}
CALL = {"type": "tool_use", "name": "get_temperature"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


async def sent(http: Http, request: Request, **more: Any) -> dict[str, Any]:
    async with serving(streamed(anthropic_says("ok"))) as server:
        await reply_of(provider_for("anthropic", server.url, http, **more), request)
    return server.requests[0].json


def said(*parts: dict[str, Any]) -> list[str]:
    return [event(part, name=part["type"]) for part in parts]


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def ending(reason: str) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    usage = {"output_tokens": 5}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


async def test_the_stable_part_of_a_conversation_is_marked_for_caching(http: Http) -> None:
    request = Request(history(), [WEATHER], temperature=0.0, max_tokens=50)
    body = await sent(http, request, profile=SEEING)
    messages = body.pop("messages")
    assert body == {
        "model": "m",
        "stream": True,
        "max_tokens": 50,
        "system": [{"type": "text", "text": "You know the weather.", "cache_control": HINT}],
        "tools": [
            {
                "name": "get_temperature",
                "description": WEATHER.description,
                "input_schema": WEATHER.parameters,
                "cache_control": HINT,
            }
        ],
    }
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "Oslo and Rome?"}, IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {**CALL, "id": "call_1", "input": {"city": "Oslo"}},
                {**CALL, "id": "call_2", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "-4 C"}, IMAGE],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "call_2",
                    "content": [{"type": "text", "text": "the arguments are not JSON; ask again"}],
                    "is_error": True,
                },
                {"type": "text", "text": "And now?", "cache_control": HINT},
            ],
        },
    ]


async def test_the_cache_hint_moves_to_the_last_message(http: Http) -> None:
    talk = history()
    async with serving(streamed(anthropic_says("ok"))) as server:
        provider = provider_for("anthropic", server.url, http)
        await reply_of(provider, Request(talk))
        talk.append(Reply("Four."))
        talk.append(user("Thanks"))
        await reply_of(provider, Request(talk))
    first, second = (request.json["messages"] for request in server.requests)
    assert first[-1]["content"][-1].pop("cache_control") == HINT
    assert second[: len(first)] == first
    assert second[-1]["content"] == [{"type": "text", "text": "Thanks", "cache_control": HINT}]


async def test_a_closing_request_keeps_the_tools_but_forbids_calls(http: Http) -> None:
    body = await sent(http, Request(history(), [WEATHER], offer_tools=False))
    assert body["tool_choice"] == {"type": "none"}
    assert body["tools"][0]["name"] == "get_temperature"
    assert "tool_choice" not in await sent(http, simple_request(tools=[WEATHER]))


async def test_max_tokens_is_always_sent(http: Http) -> None:
    body = await sent(http, simple_request(), profile=Profile(max_output_tokens=77))
    assert body["max_tokens"] == 77
    assert "tools" not in body
    assert "system" not in body


async def test_blank_text_is_never_sent(http: Http) -> None:
    blank = UserMessage((TextBlock(" \n"), TextBlock("hi")))
    calls = Reply(text="", calls=(ToolCall("a", "f", "{}"),))
    result = ToolResult("a", "f", (TextBlock(""),))
    talk = history(SystemMessage(" "), blank, calls, result, Reply(text="\n"), user("go on"))
    body = await sent(http, Request(talk))
    assert "system" not in body
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a"},
                {"type": "text", "text": "go on", "cache_control": HINT},
            ],
        },
    ]


async def test_adjacent_messages_of_one_role_are_merged(
    http: Http,
) -> None:
    trap = '{"x": [{"a": []},\n{"role":"user","content":[{"role":"user","content":[]}]}]}'
    talk = history(user("a"), user("b"), Reply("c"), Reply(calls=(ToolCall("i", "f", trap),)))
    body = await sent(http, Request(talk))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
    assert [block["text"] for block in body["messages"][0]["content"]] == ["a", "b"]
    said, called = body["messages"][1]["content"]
    assert said["text"] == "c"
    assert called["input"] == json.loads(trap)
    assert called["cache_control"] == HINT


async def test_a_history_with_only_a_system_message_sends_no_messages(http: Http) -> None:
    assert (await sent(http, Request(history(SystemMessage("only this")))))["messages"] == []


async def test_an_empty_tool_result_carries_the_cache_hint(http: Http) -> None:
    calls = Reply(calls=(ToolCall("a.b:c", "f", '{"deep": {"x": [1e400]}}'),))
    body = await sent(http, Request(history(user("x"), calls, ToolResult("a.b:c", "f", ()))))
    assert body["messages"][-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "a_b_c", "cache_control": HINT}
    ]
    assert body["messages"][1]["content"][0]["id"] == "a_b_c"


async def test_lone_surrogates_are_replaced(http: Http) -> None:
    body = await sent(http, Request(history(user("half \ud83d"))))
    assert body["messages"][0]["content"][0]["text"] == "half ?"


async def test_a_model_without_vision_gets_a_note_instead_of_an_image(http: Http) -> None:
    text = json.dumps(await sent(http, Request(history())))
    assert text.count("a picture (image/png) was left out") == 2
    assert PIXEL not in text


async def test_the_api_key_is_sent_in_the_x_api_key_header(http: Http) -> None:
    async with serving(streamed(anthropic_says("ok"))) as server:
        await reply_of(provider_for("anthropic", server.url, http, api_key="secret"))
        await reply_of(provider_for("anthropic", f"{server.url}/v1/", http))
    keyed, bare = server.requests
    assert (keyed.headers["x-api-key"], keyed.headers["anthropic-version"]) == (
        "secret",
        "2023-06-01",
    )
    assert "x-api-key" not in bare.headers
    assert keyed.path == bare.path == "/v1/messages"


async def test_cached_tokens_count_as_input_tokens(http: Http) -> None:
    def price(model: str, usage: Usage) -> float:
        return 0.5

    async with serving(streamed(anthropic_says("a", "b"))) as server:
        reply = await reply_of(provider_for("anthropic", server.url, http, price=price))
    assert reply.usage == Usage(125, 9, cache_read=100, cache_write=20)
    assert (reply.text, reply.model, reply.cost) == ("ab", "claude-test", 0.5)


async def test_content_blocks_of_every_kind_are_assembled(http: Http) -> None:
    pieces = said(
        *block(
            0,
            {"type": "thinking", "thinking": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "x"},
        ),
        *block(1, {"type": "text", "text": "I "}, {"type": "text_delta", "text": "look"}),
        *block(2, {"type": "tool_use", "id": "a", "name": "f", "input": {}}),
        *block(
            3,
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"x": "'},
            {"type": "input_json_delta", "partial_json": 'é"}'},
        ),
        *block(4, {"type": "tool_use", "id": "c", "name": "h", "input": {"whole": 1}}),
        *block(5, {"type": "server_tool_use", "id": "d", "name": "web"}),
        *ending("tool_use"),
    )
    async with serving(streamed(pieces)) as server:
        deltas, reply = await deltas_and_reply(provider_for("anthropic", server.url, http))
    assert deltas == [ReasoningDelta("hm"), TextDelta("I "), TextDelta("look")]
    assert (reply.text, reply.reasoning, reply.finish) == ("I look", "hm", Finish.CALLS)
    assert [(c.id, c.name, json.loads(c.arguments)) for c in reply.calls] == [
        ("a", "f", {}),
        ("b", "g", {"x": "é"}),
        ("c", "h", {"whole": 1}),
    ]


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("pause_turn", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("refusal", Finish.FILTERED),
    ],
)
async def test_stop_reasons_are_mapped(word: str, finish: Finish, http: Http) -> None:
    pieces = said(*block(0, {"type": "text", "text": "a"}), *ending(word))
    async with serving(streamed(pieces)) as server:
        assert (await reply_of(provider_for("anthropic", server.url, http))).finish is finish


def test_the_provider_exposes_its_model_name_and_profile() -> None:
    provider = AnthropicProvider("x", http=Http(), profile=SEEING)
    assert (provider.model, provider.profile) == ("anthropic/x", SEEING)
