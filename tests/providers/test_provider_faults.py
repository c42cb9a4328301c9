"""What servers do wrong (FAULTS.md row 47), against real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from evoclaw.core.errors import ProviderErrorKind as Kind
from evoclaw.core.events import Replied, ReplyRetried, TextDelta
from evoclaw.core.messages import Usage
from evoclaw.providers.fallback import Fallback
from evoclaw.providers.http import Http, RetryPolicy
from tests.support.llm_servers import (
    Answer,
    anthropic_says,
    chunk,
    endless,
    event,
    ollama_says,
    openai_says,
    reset,
    serving,
    silent,
    sized,
    streamed,
    until_close,
    whole,
)
from tests.support.provider_requests import (
    error_of,
    events_of,
    provider_for,
    reply_of,
    simple_request,
)

SAYS: dict[str, Callable[..., list[str]]] = {
    "openai": openai_says,
    "anthropic": anthropic_says,
    "ollama": ollama_says,
}
DIALECTS = sorted(SAYS)
CUTS = {"openai": 1, "anthropic": 4, "ollama": 1}
"""Pieces up to and with the first text."""


def good(dialect: str) -> Answer:
    return streamed(SAYS[dialect]("whole"))


BREAKS: dict[str, Callable[[list[str], str], Answer]] = {
    "half-closed in the middle of the chunks": lambda said, _: streamed(said, end=False),
    "ended politely but too early": lambda said, _: streamed(said),
    "closed, with no length given": lambda said, _: until_close(said),
    "cut inside a payload": lambda said, _: until_close([*said, said[-1][:-20]]),
    "reset": lambda said, _: reset(said),
    "reset before the head": lambda said, _: reset(head=False),
    "shorter than its length": lambda said, _: sized(said, 10_000, close=True),
    "longer than its length": lambda said, _: sized(
        [*said, "more"], len("".join(said)), close=True
    ),
    "not JSON": lambda said, field: streamed([*said, field + "{half\n\n"]),
    "not UTF-8": lambda said, field: streamed([field.encode() + b'{"model": "\xff"}\n\n']),
    "nested without end": lambda said, field: streamed([field + '{"x":' + "[" * 9999 + "\n\n"]),
    "empty": lambda said, _: streamed([]),
}


def broken(how: str, dialect: str) -> Answer:
    """A reply that breaks off after its first word."""
    said = SAYS[dialect]("half", "way")[: CUTS[dialect]]
    return BREAKS[how](said, "" if dialect == "ollama" else "data: ")


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_an_interrupted_reply_is_requested_again(
    dialect: str, how: str, http: Http
) -> None:
    async with serving(broken(how, dialect), good(dialect)) as server:
        events = await events_of(provider_for(dialect, server.url, http))
    retries = [e for e in events if isinstance(e, ReplyRetried)]
    assert {(r.kind, r.wait) for r in retries} == {("server_error", 0.0)}
    # What is left of a body longer than its length spoils the connection for the next attempt.
    assert [r.attempt for r in retries] in ([[1], [1, 2]] if "longer" in how else [[1]])
    assert events[-2] == TextDelta("whole")
    last = events[-1]
    assert isinstance(last, Replied)
    assert last.reply.text == "whole"
    assert server.requests[0].body == server.requests[1].body


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_the_number_of_attempts_is_bounded(
    dialect: str, how: str, http: Http
) -> None:
    async with serving(broken(how, dialect)) as server:
        error = await error_of(provider_for(dialect, server.url, http))
    assert error.kind is Kind.SERVER_ERROR
    assert str(error).startswith(f"{dialect}/m: ")
    assert len(server.requests) in ((2, 3) if "longer" in how else (3,))


@pytest.mark.parametrize(("max_retries", "attempts"), [(0, 1), (1, 2), (9, 3)])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_request_can_lower_the_number_of_its_retries(
    dialect: str, max_retries: int, attempts: int, http: Http
) -> None:
    request = msgspec.structs.replace(simple_request(), max_retries=max_retries)
    async with serving(whole({}, status=503)) as server:
        await error_of(provider_for(dialect, server.url, http), request)
    assert len(server.requests) == attempts, "never more than the provider is configured with"


CALLS: dict[str, list[str]] = {
    "openai": [
        chunk(
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "rm", "arguments": ""}}]}
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"path": "/"'}}]}),
    ],
    "anthropic": [
        *anthropic_says()[:1],
        event(
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "a", "name": "rm", "input": {}},
            }
        ),
        event(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"path": "/"}'},
            }
        ),
    ],
    "ollama": [
        '{"message":{"tool_calls":[{"function":{"name":"rm","arguments":{"path":"/"}}}]},'
        '"done":false}\n'
    ],
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_a_partial_call_is_never_returned(dialect: str, http: Http) -> None:
    for answer in (streamed(CALLS[dialect]), reset(CALLS[dialect])):
        async with serving(answer, good(dialect)) as server:
            reply = await reply_of(provider_for(dialect, server.url, http))
        assert (reply.text, reply.calls) == ("whole", ())


async def test_a_premature_done_returns_no_call_with_partial_arguments(http: Http) -> None:
    answer = streamed([*CALLS["openai"], "data: [DONE]\n\n"])
    async with serving(answer, good("openai")) as server:
        reply = await reply_of(provider_for("openai", server.url, http))
    assert (reply.text, reply.calls) == ("whole", ())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_complete_reply_is_returned_although_the_connection_fails_after_it(
    dialect: str, http: Http
) -> None:
    said = SAYS[dialect]("whole")
    # Without OpenAI's `[DONE]` and Anthropic's `message_stop`.
    said = said if dialect == "ollama" else said[:-1]
    for answer in (reset(said), streamed(said, end=False), until_close(said)):
        async with serving(answer) as server:
            reply = await reply_of(provider_for(dialect, server.url, http))
        assert reply.text == "whole"
        assert len(server.requests) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_reply_is_returned_before_the_server_closes_the_connection(
    dialect: str, http: Http
) -> None:
    async with serving(silent(SAYS[dialect]("whole"))) as server:
        reply = await reply_of(provider_for(dialect, server.url, http))
        await asyncio.wait_for(server.hung_up.wait(), 10)
    assert reply.text == "whole"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_transient_errors_are_retried(dialect: str, status: int, http: Http) -> None:
    refusal = whole({"error": {"message": "busy"}}, status=status, retry_after="0")
    async with serving(refusal, refusal, good(dialect)) as server:
        events = await events_of(provider_for(dialect, server.url, http))
    assert [e.attempt for e in events if isinstance(e, ReplyRetried)] == [1, 2]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "body", "kind", "hint"),
    [
        (401, {"error": {"message": "bad key"}}, Kind.AUTH_ERROR, "API key"),
        (404, {"error": "model 'm' not found, try pulling it first"}, Kind.MODEL_NOT_FOUND, "name"),
        (400, {"error": {"code": "context_length_exceeded"}}, Kind.CONTEXT_TOO_LONG, "Shorten"),
        (429, {"error": {"code": "insufficient_quota"}}, Kind.QUOTA_EXHAUSTED, "credit"),
        (400, {"error": {"message": "odd"}}, Kind.UNKNOWN, "base URL"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_permanent_errors_are_raised_at_once(
    dialect: str, status: int, body: dict[str, Any], kind: Kind, hint: str, http: Http
) -> None:
    async with serving(whole(body, status=status)) as server:
        error = await error_of(provider_for(dialect, server.url, http))
    assert error.kind is kind
    assert hint in str(error)
    assert f"({status})" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_an_error_body_with_status_200_is_an_error(dialect: str, http: Http) -> None:
    said: dict[str, Any] = {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
    }
    async with serving(whole(said), good(dialect)) as server:
        events = await events_of(provider_for(dialect, server.url, http))
    (retry,) = [e for e in events if isinstance(e, ReplyRetried)]
    assert (retry.kind, retry.reason) == ("server_error", "the server refused: busy")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fault_47_an_error_in_the_middle_of_a_stream_is_an_error(
    dialect: str, http: Http
) -> None:
    said = SAYS[dialect]("half")[: CUTS[dialect]]
    bad = {"error": {"code": "insufficient_quota", "message": "no more"}}
    pieces = {
        "openai": [*said, event(bad)],
        "anthropic": [*said, event({"type": "error", **bad}, name="error")],
        "ollama": [*said, '{"error": "insufficient_quota: no more"}\n'],
    }
    async with serving(streamed(pieces[dialect])) as server:
        error = await error_of(provider_for(dialect, server.url, http))
    assert error.kind is Kind.QUOTA_EXHAUSTED
    assert "no more" in str(error)


@pytest.mark.parametrize(
    "body", [{"choices": []}, {"object": "error", "message": "oh"}, {"detail": "oh"}]
)
async def test_fault_47_empty_choices_are_an_error(body: dict[str, Any], http: Http) -> None:
    for answer in (whole(body), streamed([event(body), "data: [DONE]\n\n"])):
        async with serving(answer) as server:
            error = await error_of(provider_for("openai", server.url, http))
        assert error.kind is Kind.SERVER_ERROR


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_html_page_is_recognized_and_not_retried(dialect: str, http: Http) -> None:
    page = "<!DOCTYPE html>\n\n<html><body>Log in to the airport</body></html>"
    async with serving(whole(page, kind="text/html")) as server:
        error = await error_of(provider_for(dialect, server.url, http))
    assert error.kind is Kind.UNKNOWN
    assert "web page" in str(error)
    assert len(server.requests) == 1


async def test_a_redirect_is_not_followed_so_the_api_key_is_not_leaked(http: Http) -> None:
    async with serving(whole("", status=307, location="http://evil.example/v1")) as server:
        error = await error_of(provider_for("openai", server.url, http, api_key="sk-secret-key"))
    assert error.kind is Kind.UNKNOWN
    assert "evil.example" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_api_key_echoed_by_the_server_is_redacted(dialect: str, http: Http) -> None:
    refusal = whole({"error": {"message": "bad key sk-secret-key\x1b[0m\u202e!"}}, status=401)
    async with serving(refusal) as server:
        error = await error_of(provider_for(dialect, server.url, http, api_key="sk-secret-key"))
    assert "secret" not in str(error)
    assert "bad key *** [0m" in str(error)
    assert str(error).isprintable()


async def test_a_long_error_message_is_truncated(http: Http) -> None:
    async with serving(whole("word " * 100_000, status=400)) as server:
        error = await error_of(provider_for("openai", server.url, http))
    assert len(str(error)) < 500


async def test_a_retry_after_beyond_the_time_budget_fails_at_once(
    http: Http,
) -> None:
    async with serving(whole("{}", status=429, retry_after="3600")) as server:
        error = await error_of(provider_for("openai", server.url, http))
    assert (error.kind, error.retry_after) == (Kind.RATE_LIMITED, 3600.0)
    assert len(server.requests) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("when", ["before the head", "after the head", "after a word"])
async def test_fault_47_a_silent_server_is_a_timeout(dialect: str, when: str) -> None:
    said = SAYS[dialect]("half")[: CUTS[dialect]] if when == "after a word" else []
    mute = silent(said, head=when != "before the head")
    async with Http(read_timeout=0.1) as http, serving(mute) as server:
        error = await error_of(
            provider_for(dialect, server.url, http, retry=RetryPolicy(attempts=1))
        )
        await asyncio.wait_for(server.hung_up.wait(), 10)
    assert error.kind is Kind.TIMEOUT
    assert "sent nothing for 0.1 s" in str(error)


async def test_a_slow_consumer_is_not_a_server_timeout() -> None:
    later = asyncio.Event()
    async with (
        Http(read_timeout=0.3) as http,
        serving(good("openai")) as server,
        aclosing(provider_for("openai", server.url, http).stream(simple_request())) as events,
    ):
        assert await anext(events) == TextDelta("whole")
        asyncio.get_running_loop().call_later(0.5, later.set)
        await asyncio.wait_for(later.wait(), 10)
        assert isinstance(await anext(events), Replied)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_connection_refused_is_reported_with_advice(dialect: str, http: Http) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        error = await error_of(provider_for(dialect, url, http))
    assert error.kind is Kind.SERVER_ERROR
    assert "Check that the server is up" in str(error)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_closing_the_stream_ends_the_request_and_keeps_the_session(
    dialect: str, http: Http
) -> None:
    said = SAYS[dialect]("one", "two")[: CUTS[dialect] + 1]
    async with serving(silent(said), good(dialect)) as server:
        provider = provider_for(dialect, server.url, http)
        async with asyncio.timeout(30), aclosing(provider.stream(simple_request())) as events:
            assert await anext(events) == TextDelta("one")
        await asyncio.wait_for(server.hung_up.wait(), 10)
        assert (await reply_of(provider)).text == "whole"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_cancelling_ends_the_request(dialect: str, http: Http) -> None:
    async with serving(silent(head=False)) as server:
        asking = asyncio.create_task(reply_of(provider_for(dialect, server.url, http)))
        async with asyncio.timeout(30):
            await server.asked.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await server.hung_up.wait()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_endless_line_is_an_error_within_bounded_memory(dialect: str, http: Http) -> None:
    start = b"{" if dialect == "ollama" else b"data: {"
    async with serving(endless(start, b"x" * 2**18)) as server:
        error = await error_of(provider_for(dialect, server.url, http))
        await asyncio.wait_for(server.hung_up.wait(), 10)
    assert error.kind is Kind.UNKNOWN
    assert "without an end" in str(error)
    assert len(server.requests) == 1


async def test_an_endless_body_is_an_error_within_bounded_memory(http: Http) -> None:
    lines = b": " + b"comment " * 1000 + b"\n\n"
    async with serving(endless(b"", lines * 32)) as server:
        error = await error_of(provider_for("openai", server.url, http))
        await asyncio.wait_for(server.hung_up.wait(), 10)
    assert error.kind is Kind.UNKNOWN
    assert "64 MiB" in str(error)


def _price(model: str, usage: Usage) -> float | None:
    return usage.input * 1.0


async def test_fault_47_usage_of_failed_attempts_is_recorded(http: Http) -> None:
    half = streamed(anthropic_says("half")[:4])
    async with serving(half, half, good("anthropic")) as server:
        provider = provider_for("anthropic", server.url, http, price=_price)
        reply = await reply_of(provider)
    one = Usage(125, 1, cache_read=100, cache_write=20)
    assert reply.usage == one + one + Usage(125, 9, cache_read=100, cache_write=20)
    assert reply.cost == 375.0
    async with serving(half) as server:
        error = await error_of(provider_for("anthropic", server.url, http))
    assert error.usage == one + one + one


async def test_usage_without_a_price_leaves_the_cost_unknown(http: Http) -> None:
    prices = iter([None, None, 1.0])

    def price(model: str, usage: Usage) -> float | None:
        return next(prices)

    half = streamed(anthropic_says("half")[:4])
    async with serving(half, good("anthropic")) as server:
        provider = provider_for("anthropic", server.url, http, price=price)
        assert (await reply_of(provider)).cost is None


async def test_an_api_key_that_is_no_valid_header_is_an_error(http: Http) -> None:
    async with serving(good("openai")) as server:
        error = await error_of(provider_for("openai", server.url, http, api_key="a\nsecret-part"))
    assert error.kind is Kind.UNKNOWN
    assert "secret-part" not in str(error)
    assert not server.requests


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_surrogate_pair_cut_between_two_chunks_is_joined(dialect: str, http: Http) -> None:
    cut = SAYS[dialect]("Well done \ud83d", "\ude00!", " lone \ud83d here")
    async with serving(streamed(cut)) as server:
        reply = await reply_of(provider_for(dialect, server.url, http))
    assert reply.text == "Well done 😀! lone \ufffd here"


async def test_a_surrogate_pair_cut_inside_the_arguments_of_a_call_is_joined(http: Http) -> None:
    pieces = [
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": function}]})
        for function in (
            {"name": "say", "arguments": '{"text": "\ud83d'},
            {"arguments": '\ude00"}'},
        )
    ]
    async with serving(streamed([*pieces, chunk({}, "tool_calls")])) as server:
        reply = await reply_of(provider_for("openai", server.url, http))
    assert reply.calls[0].arguments == '{"text": "😀"}'


@pytest.mark.parametrize(
    "said",
    [
        '{"error": "registry.ollama.ai/library/gemma:2b does not support tools"}',
        '{"error": {"message": "No endpoints found that support tool use.", "code": 404}}',
    ],
)
async def test_a_model_without_tools_is_an_error_kind_of_its_own(said: str, http: Http) -> None:
    async with serving(whole(said, status=400)) as server:
        error = await error_of(provider_for("ollama", server.url, http))
    assert error.kind is Kind.TOOLS_UNSUPPORTED
    assert "can call tools" in str(error)


async def test_a_fallback_continues_after_a_model_without_tools(http: Http) -> None:
    refuses = whole('{"error": "gemma:2b does not support tools"}', status=400)
    async with serving(refuses) as first, serving(streamed(ollama_says("Hello."))) as second:
        models = [provider_for("ollama", server.url, http) for server in (first, second)]
        reply = await reply_of(Fallback(models))
    assert reply.text == "Hello."
