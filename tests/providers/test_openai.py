"""OpenAI's dialect: what is sent, and how replies are put together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evoclaw.core.events import ReasoningDelta, TextDelta
from evoclaw.core.history import History, MessageEncoder
from evoclaw.core.messages import Finish, Reply, TextBlock, ToolCall, ToolResult, Usage, user
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.http import Http
from evoclaw.providers.openai import OpenAIProvider
from evoclaw.providers.request_encoding import vendor_tool_name
from tests.support.llm_servers import chunk, event, openai_says, serving, streamed, whole
from tests.support.provider_requests import (
    AT_ONCE,
    PIXEL,
    SEEING,
    WEATHER,
    deltas_and_reply,
    history,
    provider_for,
    reply_of,
    simple_request,
)

DONE = "data: [DONE]\n\n"


async def sent(http: Http, request: Request, **more: Any) -> dict[str, Any]:
    async with serving(streamed(openai_says("ok"))) as server:
        await reply_of(provider_for("openai", server.url, http, **more), request)
    return server.requests[0].json


async def read(http: Http, *pieces: str) -> Reply:
    async with serving(streamed(pieces)) as server:
        return await reply_of(provider_for("openai", server.url, http))


def calling(**call: Any) -> str:
    function = {k: call.pop(k) for k in ("name", "arguments") if k in call}
    return chunk({"tool_calls": [{**call, "function": function}]})


async def test_24_calls_serialise_for_openai(http: Http) -> None:
    body = await sent(http, Request(history()))
    assert body["messages"][2] == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_temperature", "arguments": '{"city": "Oslo"}'},
            },
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "get_temperature", "arguments": "{}"},
            },
        ],
    }


async def test_25_a_tool_message_has_its_call_id_and_no_name(http: Http) -> None:
    body = await sent(http, Request(history()))
    assert body["messages"][4] == {
        "role": "tool",
        "tool_call_id": "call_2",
        "content": "the arguments are not JSON; ask again",
    }


async def test_29_openai_wraps_tools_as_functions(http: Http) -> None:
    body = await sent(http, simple_request(tools=[WEATHER]))
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "get_temperature",
                "description": WEATHER.description,
                "parameters": WEATHER.parameters,
            },
        }
    ]


async def test_a_closing_request_offers_no_tools(http: Http) -> None:
    body = await sent(http, simple_request(tools=[WEATHER], offer_tools=False))
    assert "tools" not in body


async def test_every_request_streams_and_asks_for_usage(http: Http) -> None:
    body = await sent(http, Request(history(user("x")), temperature=0.5, max_tokens=9))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 9,
    }


def test_the_openai_endpoint_gets_max_completion_tokens() -> None:
    provider = OpenAIProvider("m", http=Http())
    request = Request(history(user("x")), max_tokens=9)
    body = json.loads(provider._body(request))  # pyright: ignore[reportPrivateUsage]
    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body


async def test_an_api_key_is_sent_only_if_configured(http: Http) -> None:
    async with serving(streamed(openai_says("ok"))) as server:
        await reply_of(provider_for("openai", server.url, http))
        headers = {"X-Team": "blue"}
        await reply_of(provider_for("openai", server.url, http, api_key="k\n", headers=headers))
    bare, keyed = (request.headers for request in server.requests)
    assert "authorization" not in bare
    assert (keyed["authorization"], keyed["x-team"]) == ("Bearer k", "blue")


async def test_images_of_results_follow_the_last_result_of_their_turn(http: Http) -> None:
    body = await sent(http, Request(history()), profile=SEEING)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "user"]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    assert body["messages"][1]["content"] == [{"type": "text", "text": "Oslo and Rome?"}, picture]
    assert body["messages"][3]["content"] == "-4 C"
    assert body["messages"][5]["content"][1] == picture
    assert "call_1" in body["messages"][5]["content"][0]["text"]
    body = await sent(http, Request(history(*history().to_tuple()[:-1])), profile=SEEING)
    assert body["messages"][-1]["content"][1] == picture


async def test_a_model_without_vision_gets_a_note_instead_of_an_image(http: Http) -> None:
    body = await sent(http, Request(history()), profile=Profile(images=False))
    for index in (1, 3):
        assert "a picture (image/png) was left out" in body["messages"][index]["content"]
    assert PIXEL not in json.dumps(body)


async def test_reasoning_is_never_sent_back(http: Http) -> None:
    assert "two cities" not in json.dumps(await sent(http, Request(history())))


async def test_lone_surrogates_and_invalid_tool_names_are_replaced(http: Http) -> None:
    reply = Reply(calls=(ToolCall("c", "no such/tool", '{"x": 1}'), ToolCall("d", "", "[1]")))
    result = ToolResult("c", "no such/tool", (TextBlock("half \ud83d"),))
    body = await sent(http, Request(history(user("x"), reply, result)))
    calls = body["messages"][1]["tool_calls"]
    assert [c["function"] for c in calls] == [
        {"name": vendor_tool_name("no such/tool"), "arguments": '{"x": 1}'},
        {"name": vendor_tool_name(""), "arguments": "{}"},
    ]
    assert body["messages"][2]["content"] == "half ?"


async def test_each_message_is_encoded_once_with_and_without_images(
    http: Http,
) -> None:
    def never() -> MessageEncoder:
        raise AssertionError("this dialect was written before")

    talk = history()
    async with serving(streamed(openai_says("ok"))) as server:
        blind = provider_for("openai", server.url, http)
        seeing = provider_for("openai", server.url, http, profile=SEEING)
        for provider in (blind, seeing, blind):
            await reply_of(provider, Request(talk))
        first = talk.encoded("openai", never)
        talk.append(user("more"))
        await reply_of(blind, Request(talk))
    one, two, three, four = (request.json["messages"] for request in server.requests)
    assert one == three == four[:-1]
    assert len(two) == len(one) + 1
    assert talk.encoded("openai", never) is first


async def test_interleaved_calls_are_assembled_by_index(http: Http) -> None:
    reply = await read(
        http,
        calling(index=0, id="a", name="f", arguments='{"x"'),
        calling(index=1, id="b", name="g", arguments='{"y"'),
        calling(index=0, arguments=": 1}"),
        calling(index=1, arguments=": 2}"),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert reply.calls == (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", '{"y": 2}'))
    assert reply.finish is Finish.CALLS


ODD_CALLS: dict[str, tuple[list[str], list[tuple[str, str]]]] = {
    "no index, one call": (
        [calling(id="a", name="f", arguments=""), calling(arguments="{"), calling(arguments="}")],
        [("f", "{}")],
    ),
    "no index, two calls": (
        [
            calling(id="a", name="f", arguments='{"x":'),
            calling(arguments="1}"),
            calling(id="b", name="f", arguments='{"x":2}'),
        ],
        [("f", '{"x":1}'), ("f", '{"x":2}')],
    ),
    "no index, calls told apart by their ids": (
        [
            calling(id="a", name="f", arguments=""),
            calling(id="b", name="g", arguments=""),
            calling(id="a", arguments='{"x":1}'),
            calling(id="b", arguments='{"x":2}'),
        ],
        [("f", '{"x":1}'), ("g", '{"x":2}')],
    ),
    "no id, no index, whole calls": (
        [calling(name="f", arguments='{"x":1}'), calling(name="f", arguments='{"x":2}')],
        [("f", '{"x":1}'), ("f", '{"x":2}')],
    ),
    "every call is index 0": (
        [
            calling(index=0, id="a", name="f", arguments='{"x":1}'),
            calling(index=0, id="b", name="f", arguments='{"x":2}'),
        ],
        [("f", '{"x":1}'), ("f", '{"x":2}')],
    ),
    "every call is index 0 and has no id": (
        [
            calling(index=0, name="f", arguments='{"x":1}'),
            calling(index=0, name="g", arguments='{"x":2}'),
        ],
        [("f", '{"x":1}'), ("g", '{"x":2}')],
    ),
    "name and id repeated": (
        [
            calling(index=0, id="a", name="f", arguments='{"x"'),
            calling(index=0, id="a", name="f", arguments=":1}"),
        ],
        [("f", '{"x":1}')],
    ),
    "name repeated without id": (
        [calling(index=0, name="f", arguments='{"x"'), calling(index=0, name="f", arguments=":1}")],
        [("f", '{"x":1}')],
    ),
    "name spelt out": (
        [calling(index=0, id="a", name="get_"), calling(index=0, name="it", arguments="{}")],
        [("get_it", "{}")],
    ),
    "a new id in every piece": (
        [
            calling(index=0, id="a", name="f", arguments='{"x"'),
            calling(index=0, id="b", arguments=":1}"),
        ],
        [("f", '{"x":1}')],
    ),
    "arguments as an object": (
        [calling(index=0, id="a", name="f", arguments={"x": [1, None]})],
        [("f", '{"x":[1,null]}')],
    ),
    "no arguments": ([calling(index=0, id="a", name="f")], [("f", "{}")]),
    "no function": ([calling(index=0, id="a")], [("", "{}")]),
}


@pytest.mark.parametrize("what", ODD_CALLS)
async def test_nonstandard_call_deltas_are_assembled(what: str, http: Http) -> None:
    pieces, expected = ODD_CALLS[what]
    reply = await read(http, *pieces, chunk({}, "stop"), DONE)
    assert [(call.name, call.arguments) for call in reply.calls] == expected
    assert len({call.id for call in reply.calls}) == len(expected)
    assert all(call.id for call in reply.calls)
    assert reply.finish is Finish.CALLS


async def test_malformed_arguments_are_passed_on_unchanged(http: Http) -> None:
    reply = await read(
        http, calling(index=0, id="a", name="f", arguments='{"x": '), chunk({}, "stop")
    )
    assert reply.calls == (ToolCall("a", "f", '{"x":'),)


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("stop", Finish.STOP),
        ("length", Finish.LENGTH),
        ("content_filter", Finish.FILTERED),
        ("tool_calls", Finish.STOP),
        ("eos", Finish.STOP),
    ],
)
async def test_finish_reasons_are_mapped(word: str, finish: Finish, http: Http) -> None:
    assert (await read(http, chunk({"content": "a"}, word), DONE)).finish is finish


async def test_fault_48_a_call_truncated_at_the_token_limit_is_marked(http: Http) -> None:
    reply = await read(
        http, calling(index=0, id="a", name="f", arguments='{"x'), chunk({}, "length"), DONE
    )
    assert reply.finish is Finish.LENGTH


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_separated_from_text(field: str, http: Http) -> None:
    pieces = [chunk({field: "hm"}), chunk({field: "m", "content": "so"}), chunk({}, "stop"), DONE]
    async with serving(streamed(pieces)) as server:
        deltas, reply = await deltas_and_reply(provider_for("openai", server.url, http))
    assert deltas == [ReasoningDelta("hm"), ReasoningDelta("m"), TextDelta("so")]
    assert (reply.text, reply.reasoning) == ("so", "hmm")


async def test_usage_model_and_cost_come_from_the_response(http: Http) -> None:
    def price(model: str, usage: Usage) -> float | None:
        return usage.input / 10 if model == "gpt-test" else None

    async with serving(streamed(openai_says("a")), streamed([chunk({}, "stop"), DONE])) as server:
        provider = provider_for("openai", server.url, http, price=price)
        reply, unknown = await reply_of(provider), await reply_of(provider)
    assert (reply.model, reply.usage, reply.cost) == ("gpt-test", Usage(7, 3), 0.7)
    assert (unknown.model, unknown.usage, unknown.cost) == ("m", Usage(), None)


async def test_the_price_falls_back_to_the_requested_model_name(http: Http) -> None:
    def price(model: str, usage: Usage) -> float | None:
        return 2.5 if model == "m" else None

    async with serving(streamed(openai_says("a"))) as server:
        provider = provider_for("openai", server.url, http, price=price)
        assert (await reply_of(provider)).cost == 2.5


async def test_a_response_that_is_not_streamed_is_accepted(http: Http) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": None}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}
    async with serving(whole(body)) as server:
        deltas, reply = await deltas_and_reply(provider_for("openai", server.url, http))
    assert deltas == [TextDelta("hi")]
    assert reply.calls == (ToolCall("a", "f", "{}"),)


async def test_a_stream_may_end_without_done_or_finish_but_not_both(http: Http) -> None:
    assert (await read(http, chunk({"content": "a"}), DONE)).text == "a"
    assert (await read(http, chunk({"content": "a"}, "stop"))).text == "a"
    assert (await read(http, chunk({"content": "a"}, "stop").strip())).text == "a"


async def test_chunks_without_choices_are_ignored(http: Http) -> None:
    first = event({"choices": [], "prompt_filter_results": [], "error": None})
    assert (await read(http, first, event({}), chunk({"content": "a"}, "stop"), DONE)).text == "a"


def test_the_provider_exposes_its_model_name_and_profile() -> None:
    profile = Profile(context_tokens=5)
    provider = OpenAIProvider("x", http=Http(), name="here", profile=profile, retry=AT_ONCE)
    assert (provider.model, provider.profile) == ("here/x", profile)


async def test_a_large_request_is_sent_without_a_warning(http: Http) -> None:
    body = await sent(http, Request(History([user("x" * 3_000_000)])))
    assert len(body["messages"][0]["content"]) == 3_000_000
