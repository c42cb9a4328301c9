"""The shared client: waiting, closing, and cutting streams into payloads."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError
from evoclaw.core.errors import ProviderErrorKind as Kind
from evoclaw.providers.errors import AttemptFailed, error_response, one_line
from evoclaw.providers.exchange import endpoint_url
from evoclaw.providers.http import Http, RetryPolicy, retry_after
from evoclaw.providers.sse import MAX_PAYLOAD_BYTES, EventSplitter, LineSplitter
from tests.support.llm_servers import openai_says, serving, streamed
from tests.support.provider_requests import provider_for, reply_of, simple_request


@pytest.mark.process
def test_importing_the_providers_imports_no_http_client() -> None:
    code = (
        "import sys, evoclaw.providers.openai, evoclaw.providers.anthropic, "
        "evoclaw.providers.ollama; sys.exit('aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_retry_delay_is_random_within_an_exponential_bound_up_to_a_cap() -> None:
    retry = RetryPolicy(attempts=9, base=1.0, cap=4.0, budget=1e9)
    trouble = AttemptFailed(Kind.SERVER_ERROR, "")
    for attempt, bound in enumerate((1.0, 2.0, 4.0, 4.0), start=1):
        waits = [retry.wait(trouble, attempt, 0.0) for _ in range(200)]
        assert all(wait is not None and 0 <= wait <= bound for wait in waits)
        assert len(set(waits)) > 100


def test_retry_delay_is_never_shorter_than_retry_after() -> None:
    wait = RetryPolicy(base=0.5).wait(AttemptFailed(Kind.RATE_LIMITED, "", retry_after=7.0), 1, 0.0)
    assert wait is not None
    assert 7.0 <= wait <= 7.5


@pytest.mark.parametrize(
    ("trouble", "attempt", "waited"),
    [
        (AttemptFailed(Kind.RATE_LIMITED, "", retry_after=31.0), 1, 0.0),
        (AttemptFailed(Kind.SERVER_ERROR, ""), 4, 0.0),
        (AttemptFailed(Kind.RATE_LIMITED, "", retry_after=20.0), 1, 80.0),
        (AttemptFailed(Kind.AUTH_ERROR, ""), 1, 0.0),
        (AttemptFailed(Kind.QUOTA_EXHAUSTED, ""), 1, 0.0),
        (AttemptFailed(Kind.CONTEXT_TOO_LONG, ""), 1, 0.0),
        (AttemptFailed(Kind.MODEL_NOT_FOUND, ""), 1, 0.0),
        (AttemptFailed(Kind.UNKNOWN, ""), 1, 0.0),
    ],
)
def test_retrying_stops_when_useless_or_over_the_time_budget(
    trouble: AttemptFailed, attempt: int, waited: float
) -> None:
    assert RetryPolicy().wait(trouble, attempt, waited) is None


def test_retry_after_is_parsed_as_seconds_or_as_a_date() -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert retry_after("3") == 3.0
    assert retry_after("9", "250") == 0.25
    assert retry_after("-1") == 0.0
    assert 55 < (retry_after(in_a_minute) or 0) <= 60
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert [retry_after(text) for text in ("", "soon", "nan")] == [None, None, None]


async def test_an_http_session_is_reused_and_can_be_reopened() -> None:
    async with serving(streamed(openai_says("a"))) as server, Http() as http:
        provider = provider_for("openai", server.url, http)
        for _ in range(3):
            await reply_of(provider, simple_request())
        assert server.connections == 1
        await http.aclose()
        await reply_of(provider, simple_request())
        assert server.connections == 2


def test_a_path_is_appended_to_the_base_url_before_its_query() -> None:
    assert endpoint_url("http://h:1/v1/", "/chat") == "http://h:1/v1/chat"
    assert endpoint_url("https://h/d?api-version=3", "/chat") == "https://h/d/chat?api-version=3"


@pytest.mark.parametrize(
    "base_url", ["", "localhost:80", "ftp://h", "http://", "http://[::1", "http://h:x"]
)
def test_an_invalid_base_url_is_refused(base_url: str) -> None:
    with pytest.raises(ConfigError, match="base URL"):
        endpoint_url(base_url, "/x")


SPOKEN = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b'id: 7\r\nretry: 10\r\ndata: {"a":"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"}\r\n\r\n'
    b'data:{"b":1}\n\n\n\n'
    b'event: message\ndata: {\ndata:  "c": 2}\n\n'
    b'data: {"d":3}\r\r'
    b'event: error\ndata: {"message":"no"}\n\n'
    b"event: error\ndata: overloaded\n\n"
    b'error: {"code":500}\n\n'
    b"data\n\nnothing: here\n\n"
    b"data:[DONE]"
)
HEARD = [
    '{"a":"é€😀"}'.encode(),
    b'{"b":1}',
    b'{\n "c": 2}',
    b'{"d":3}',
    b'{"error":{"message":"no"}}',
    b'{"error":"overloaded"}',
    b'{"error":{"code":500}}',
    b"",
    b"[DONE]",
]


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_sse_events_are_parsed_the_same_at_any_chunk_boundary(places: list[int]) -> None:
    splitter = EventSplitter()
    payloads = [p for piece in _cut(SPOKEN, places) for p in splitter.feed(piece)]
    assert payloads + splitter.end() == HEARD


def test_sse_events_are_parsed_the_same_byte_by_byte() -> None:
    splitter = EventSplitter()
    payloads = [p for i in range(len(SPOKEN)) for p in splitter.feed(SPOKEN[i : i + 1])]
    assert payloads + splitter.end() == HEARD


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_ndjson_lines_are_parsed_the_same_at_any_chunk_boundary(places: list[int]) -> None:
    splitter, data = LineSplitter(), '{"a":"é"}\r\n\n{"b":\t1}\n  \n{"c":2}'.encode()
    payloads = [p for piece in _cut(data, places) for p in splitter.feed(piece)]
    assert [p.strip() for p in payloads + splitter.end()] == data.split()[:1] + [
        b'{"b":\t1}',
        b'{"c":2}',
    ]


@pytest.mark.parametrize("start", [b"{", b"[", b"<html>", b"\xef\xbb\xbf \n {"])
def test_a_body_that_is_not_an_event_stream_is_returned_whole(start: bytes) -> None:
    splitter = EventSplitter()
    assert [p for b in start for p in splitter.feed(bytes([b]))] == []
    assert splitter.feed(b"\n\ndata: x\n\n") == []
    assert splitter.end() == [start.lstrip(b"\xef\xbb\xbf \n") + b"\n\ndata: x"]


@pytest.mark.parametrize("splitter", [LineSplitter, EventSplitter])
def test_a_payload_over_the_size_limit_is_refused(
    splitter: type[LineSplitter] | type[EventSplitter],
) -> None:
    one, piece = splitter(), b"x" * 2**20
    with pytest.raises(AttemptFailed, match="without an end"):
        for _ in range(MAX_PAYLOAD_BYTES // len(piece) + 1):
            one.feed(piece)


def test_server_error_text_is_sanitized_to_one_short_line() -> None:
    assert one_line("a\x1b[31m\n\tb\u202ec\x00") == "a [31m b c"
    assert len(one_line("word " * 1000)) == 300


def oops(message: str = "x", **more: object) -> str:
    return json.dumps({"error": {"message": message, **more}})


TOO_LONG = "the request exceeds the available context size"
REFUSALS: dict[Kind, list[tuple[int, str]]] = {
    Kind.QUOTA_EXHAUSTED: [
        (429, oops("Check your plan", code="insufficient_quota")),
        (400, oops("Your credit balance is too low", type="invalid_request_error")),
        (402, "{}"),
        (403, oops(type="billing_error")),
    ],
    Kind.RATE_LIMITED: [
        (429, oops("Rate limit reached. Add a payment method at /account/billing.")),
        (429, ""),
        (0, oops(type="rate_limit_error")),
        (413, oops("too large for TPM", code="rate_limit_exceeded")),
    ],
    Kind.AUTH_ERROR: [
        (401, "nope"),
        (403, "nope"),
        (400, f"[{oops('API key not valid.', code=400)}]"),
        (0, oops("who?", code=401)),
    ],
    Kind.MODEL_NOT_FOUND: [
        (404, oops("The model `x` does not exist")),
        (404, '{"error":"model \'x\' not found, try pulling it first"}'),
        (400, oops(code="model_not_found")),
        (400, '{"message":"The model `x` does not exist.","object":"error"}'),
    ],
    Kind.CONTEXT_TOO_LONG: [
        (400, oops(code="context_length_exceeded")),
        (400, oops("prompt is too long: 9 > 8", type="invalid_request_error")),
        (400, oops(TOO_LONG, code=400, type="exceed_context_size_error")),
        (500, oops(TOO_LONG)),
        (400, '{"message":"This model\'s maximum context length is 4096 tokens."}'),
        (413, "{}"),
    ],
    Kind.TIMEOUT: [(408, ""), (504, "<html>gateway</html>")],
    Kind.SERVER_ERROR: [
        (500, "oops"),
        (502, "<html>"),
        (503, oops("Loading model", code=503)),
        (529, oops("Overloaded", type="overloaded_error")),
        (0, oops("upstream", code=502)),
        (0, '{"error":"something"}'),
    ],
    Kind.UNKNOWN: [(400, '{"detail":[{"msg":"field required"}]}'), (422, "ÿþ"), (301, "moved")],
}


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [(kind, status, body) for kind, said in REFUSALS.items() for status, body in said],
)
def test_an_http_error_is_classified_by_status_and_body(kind: Kind, status: int, body: str) -> None:
    assert error_response(status, body.encode()).kind is kind
