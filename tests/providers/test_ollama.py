"""Ollama's dialect: what is sent, and how replies are put together."""

from __future__ import annotations

import json
from typing import Any

from evoclaw.core.events import ReasoningDelta, TextDelta
from evoclaw.core.messages import Finish, Usage
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.http import Http
from evoclaw.providers.ollama import OllamaProvider
from tests.support.llm_servers import ollama_says, serving, streamed
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

NDJSON = "application/x-ndjson"


async def sent(http: Http, request: Request, **more: Any) -> dict[str, Any]:
    async with serving(streamed(ollama_says("ok"), kind=NDJSON)) as server:
        await reply_of(provider_for("ollama", server.url, http, **more), request)
    assert server.requests[0].path == "/api/chat"
    return server.requests[0].json


def line(message: dict[str, Any], *, done: bool = False, **more: Any) -> str:
    return json.dumps({"model": "q", "message": message, "done": done, **more}) + "\n"


async def test_23_calls_serialise_for_ollama(http: Http) -> None:
    body = await sent(http, Request(history()))
    assert body["messages"][2] == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {
                "id": "call_1",
                "function": {"name": "get_temperature", "arguments": {"city": "Oslo"}},
            },
            {"id": "call_2", "function": {"name": "get_temperature", "arguments": {}}},
        ],
    }
    assert body["messages"][4] == {
        "role": "tool",
        "tool_name": "get_temperature",
        "tool_call_id": "call_2",
        "content": "the arguments are not JSON; ask again",
    }


async def test_28_ollama_passes_tools_when_offered(http: Http) -> None:
    offered = await sent(http, simple_request(tools=[WEATHER]))
    assert offered["tools"][0]["type"] == "function"
    assert offered["tools"][0]["function"]["parameters"] == WEATHER.parameters
    assert "tools" not in await sent(http, simple_request())
    assert "tools" not in await sent(http, simple_request(tools=[WEATHER], offer_tools=False))


async def test_num_ctx_is_requested_from_the_profile(http: Http) -> None:
    small = Profile(context_tokens=8192, max_output_tokens=100)
    body = await sent(http, Request(history(), temperature=0.1), profile=small)
    assert body["options"] == {"num_ctx": 8192, "num_predict": 100, "temperature": 0.1}
    body = await sent(http, Request(history(), max_tokens=5))
    assert body["options"] == {"num_ctx": 32768, "num_predict": 5}
    assert body["stream"] is True


async def test_images_are_sent_as_base64_lists(http: Http) -> None:
    body = await sent(http, Request(history()), profile=SEEING)
    assert body["messages"][1] == {"role": "user", "content": "Oslo and Rome?", "images": [PIXEL]}
    assert body["messages"][3]["images"] == [PIXEL]
    blind = await sent(http, Request(history()))
    assert "images" not in blind["messages"][1]
    assert "was left out" in blind["messages"][1]["content"]


async def test_calls_are_parsed_with_or_without_ids(http: Http) -> None:
    def call(arguments: object, **more: str) -> dict[str, Any]:
        return {**more, "function": {"index": 0, "name": "f", "arguments": arguments}}

    pieces = [
        line({"tool_calls": [call({"x": 1}), call({"x": 2}), call({}, id="mine")]}),
        line({"tool_calls": [call('{"x": 3}'), call(None)]}),
        line({"content": ""}, done=True, done_reason="stop", prompt_eval_count=3, eval_count=1),
    ]
    async with serving(streamed(pieces, kind=NDJSON)) as server:
        reply = await reply_of(provider_for("ollama", server.url, http))
    assert [json.loads(c.arguments) for c in reply.calls] == [
        {"x": 1},
        {"x": 2},
        {},
        {"x": 3},
        {},
    ]
    assert reply.calls[2].id == "mine"
    assert len({c.id for c in reply.calls}) == 5
    assert (reply.finish, reply.usage, reply.model) == (Finish.CALLS, Usage(3, 1), "q")


async def test_thinking_is_separated_from_text_and_truncation_is_marked(http: Http) -> None:
    pieces = [
        line({"content": "", "thinking": "hm"}),
        line({"content": "so", "thinking": "m"}),
        line({"content": "!"}, done=True, done_reason="length"),
    ]
    async with serving(streamed(pieces, kind=NDJSON)) as server:
        deltas, reply = await deltas_and_reply(provider_for("ollama", server.url, http))
    assert deltas == [ReasoningDelta("hm"), ReasoningDelta("m"), TextDelta("so"), TextDelta("!")]
    assert (reply.text, reply.reasoning, reply.finish) == ("so!", "hmm", Finish.LENGTH)


async def test_an_api_key_is_sent_if_configured(http: Http) -> None:
    async with serving(streamed(ollama_says("ok"), kind=NDJSON)) as server:
        await reply_of(provider_for("ollama", server.url, http, api_key="k"))
    assert server.requests[0].headers["authorization"] == "Bearer k"


def test_the_provider_exposes_its_model_name_and_profile() -> None:
    provider = OllamaProvider("x", http=Http(), profile=SEEING)
    assert (provider.model, provider.profile) == ("ollama/x", SEEING)
