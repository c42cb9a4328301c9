"""OpenAI's Responses API as a client: what is sent, and how replies are put together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.errors import ProviderErrorKind
from evoclaw.core.messages import Finish, Reply, Usage
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.http import Http
from evoclaw.providers.openai_responses import OpenAIResponsesProvider
from evoclaw.providers.registry import provider_for
from evoclaw.providers.scripted import calls, says
from tests.support.chat_service import serve_agents
from tests.support.llm_servers import event, serving, streamed, whole
from tests.support.provider_requests import (
    AT_ONCE,
    PIXEL,
    SEEING,
    WEATHER,
    deltas_and_reply,
    error_of,
    history,
    reply_of,
    simple_request,
)


def provider(url: str, http: Http, profile: Profile = SEEING) -> OpenAIResponsesProvider:
    return OpenAIResponsesProvider(
        "m", http=http, base_url=f"{url}/v1", profile=profile, retry=AT_ONCE
    )


def done(kind: str = "completed", **more: Any) -> str:
    usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}
    body: Any = {"object": "response", "model": "gpt-test", "usage": usage, "output": [], **more}
    return event({"type": f"response.{kind}", "response": body}, name=f"response.{kind}")


def said(*texts: str) -> list[str]:
    return [event({"type": "response.output_text.delta", "delta": text}) for text in texts]


async def test_a_conversation_is_sent_as_items(http: Http) -> None:
    async with serving(streamed([*said("ok"), done()])) as server:
        request = Request(history(), (WEATHER,), temperature=0.5, max_tokens=9, must_call=True)
        await reply_of(provider(server.url, http), request)
    body = server.requests[0].json
    assert server.requests[0].path == "/v1/responses"
    assert (body["store"], body["stream"], body["tool_choice"]) == (False, True, "required")
    assert (body["temperature"], body["max_output_tokens"]) == (0.5, 9)
    assert body["tools"][0]["name"] == "get_temperature"
    kinds = [item["type"] for item in body["input"]]
    assert kinds == [
        "message",
        "message",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert body["input"][1]["content"][1]["image_url"] == f"data:image/png;base64,{PIXEL}"
    assert body["input"][3]["arguments"] == '{"city": "Oslo"}'
    assert body["input"][5]["output"][0] == {"type": "input_text", "text": "-4 C"}
    assert "two cities" not in json.dumps(body), "reasoning is never sent back"


async def test_request_bodies_match_the_sdk_types(http: Http) -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
    from pydantic import TypeAdapter

    async with serving(streamed([*said("ok"), done()])) as server:
        await reply_of(provider(server.url, http), Request(history(), (WEATHER,)))
    TypeAdapter(ResponseCreateParamsStreaming).validate_python(server.requests[0].json)


async def test_text_reasoning_and_usage_are_streamed(http: Http) -> None:
    thought = event({"type": "response.reasoning_summary_text.delta", "delta": "Hm."})
    async with serving(streamed([thought, *said("It ", "rains."), done()])) as server:
        deltas, reply = await deltas_and_reply(provider(server.url, http))
    assert len(deltas) == 3
    assert (reply.text, reply.reasoning, reply.model) == ("It rains.", "Hm.", "gpt-test")
    assert reply.usage == Usage(7, 3, cache_read=2)
    assert reply.finish is Finish.STOP


@pytest.mark.parametrize("streams_arguments", [True, False])
async def test_calls_are_put_together(http: Http, streams_arguments: bool) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "get_temperature", "arguments": ""}
    pieces = [event({"type": "response.output_item.added", "output_index": 1, "item": item})]
    if streams_arguments:
        kind = "response.function_call_arguments.delta"
        pieces += [
            event({"type": kind, "output_index": 1, "delta": part})
            for part in ('{"city": ', '"Oslo"}')
        ]
    complete = {**item, "arguments": '{"city": "Oslo"}'}
    pieces += [event({"type": "response.output_item.done", "output_index": 1, "item": complete})]
    async with serving(streamed([*pieces, done()])) as server:
        reply = await reply_of(provider(server.url, http), simple_request(tools=[WEATHER]))
    assert [(call.id, call.name, call.arguments) for call in reply.calls] == [
        ("c", "get_temperature", '{"city": "Oslo"}')
    ]
    assert reply.finish is Finish.CALLS


async def test_a_response_that_is_not_streamed_is_read_too(http: Http) -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    body = {"object": "response", "status": "completed", "output": [message, call]}
    async with serving(whole(body)) as server:
        reply = await reply_of(provider(server.url, http))
    assert (reply.text, len(reply.calls)) == ("Yes.", 1)


async def test_a_cut_reply_has_its_reason(http: Http) -> None:
    cut = done("incomplete", incomplete_details={"reason": "max_output_tokens"})
    async with serving(streamed([*said("We"), cut])) as server:
        reply = await reply_of(provider(server.url, http))
    assert reply.finish is Finish.LENGTH


@pytest.mark.parametrize(
    "failure",
    [
        done("failed", error={"code": "rate_limit_exceeded", "message": "rate limit reached"}),
        event({"type": "error", "code": "x", "message": "rate limit reached"}, name="error"),
    ],
)
async def test_a_failed_response_is_an_error_of_its_kind(http: Http, failure: str) -> None:
    async with serving(streamed([failure])) as server:
        error = await error_of(provider(server.url, http))
    assert error.kind is ProviderErrorKind.RATE_LIMITED
    assert "rate limit reached" in str(error)


async def test_a_model_of_the_registry_answers_over_our_own_server(
    tmp_path: Path, http: Http
) -> None:
    script = (calls(("get_temperature", {"city": "Oslo"})), says("Cold."))
    async with serve_agents(tmp_path, *script) as house:
        env = {"OPENAI_BASE_URL": f"{house.url}/v1", "OPENAI_API_KEY": await house.token()}
        model = provider_for("openai-responses/lead", http=http, env=env)
        asked: Reply = await reply_of(model, simple_request("How is it?", tools=[WEATHER]))
        answer = await reply_of(model, simple_request("And now?"))
    assert [call.name for call in asked.calls] == ["get_temperature"]
    assert answer.text == "Cold."
