"""The door: who is let in, from where, how often, and with how much; by raw sockets too."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from evoclaw.api.limits import RequestRateLimiter
from evoclaw.api.settings import ServerSettings
from evoclaw.api.strict_http import problem_with
from evoclaw.store.databases.database import StoreUnavailable
from evoclaw.store.governance.tokens import TokenStore
from tests.support.service import Answer, Client, RunningService, running_service

RUNS = "/v1/runs"


async def raw(up: RunningService, *pieces: bytes, until_closed: bool = True) -> bytes:
    """Say something on a socket, and read what comes back."""
    address = urlsplit(up.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        async with asyncio.timeout(30):
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                return await reader.read(-1 if until_closed else 65_536)
            except ConnectionError:
                return b""
    finally:
        writer.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


async def request(up: RunningService, token: str, *lines: str, body: bytes = b"") -> bytes:
    host = urlsplit(up.url).netloc
    head = [*lines[:1], f"Host: {host}", f"Authorization: Bearer {token}", *lines[1:], "", ""]
    return "\r\n".join(head).encode() + body


async def healthy(up: RunningService) -> bool:
    return (await up.client("").get("/health/live")).status == 200


async def test_fault_64_request_smuggling_is_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        post = f"POST {RUNS} HTTP/1.1"
        smuggled = b"0\r\n\r\nGET /v1/tokens HTTP/1.1\r\nHost: x\r\n\r\n"
        both = await request(
            up, token, post, "Content-Length: 6", "Transfer-Encoding: chunked", body=smuggled
        )
        twice = await request(up, token, post, "Content-Length: 5", "Content-Length: 5", body=b"x")
        differ = await request(up, token, post, "Content-Length: 5", "Content-Length: 6", body=b"x")
        listed = await request(up, token, post, "Content-Length: 5, 6", body=b"xxxxx")
        folded = await request(up, token, "GET /v1/me HTTP/1.1", "X-One: a", " folded: b")
        spaced = await request(up, token, post, "Content-Length : 5", body=b"xxxxx")
        odd = await request(up, token, post, "Transfer-Encoding: xchunked", body=smuggled)
        doubled = await request(
            up, token, post, "Transfer-Encoding: chunked, identity", body=smuggled
        )
        signed = await request(up, token, post, "Content-Length: +5", body=b"xxxxx")
        bare = (await request(up, token, "GET /v1/me HTTP/1.1")).replace(b"\r\n", b"\n")
        hosts = await request(up, token, "GET /v1/me HTTP/1.1", "Host: other")
        chunk = await request(
            up, token, post, "Transfer-Encoding: chunked", body=b"zz\r\nhello\r\n0\r\n\r\n"
        )
        nul = await request(up, token, "GET /v1/me HTTP/1.1", "X-One: a\0b")
        for shape in (
            both, twice, differ, listed, folded, spaced, odd, doubled, signed, bare, hosts, chunk,
            nul,
        ):  # fmt: skip
            answer = await raw(up, shape)
            assert 400 <= status_of(answer) < 502, (shape, answer)
            assert status_of(answer) not in (401, 404), (shape, answer)
            assert answer.count(b"HTTP/1.1 ") == 1, (shape, answer)
        assert await healthy(up)
        assert not (await up.client(token).get(RUNS)).json["items"]


async def test_a_folded_header_in_a_pipelined_request_is_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        good = await request(up, token, "GET /v1/me HTTP/1.1")
        folded = await request(up, token, "GET /v1/me HTTP/1.1", "X-One: a", "\tb")
        answer = await raw(up, good + folded)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert answer.count(b"HTTP/1.1 400") == 1


async def test_fault_64_oversized_bodies_and_headers_are_refused_early(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        post = f"POST {RUNS} HTTP/1.1"
        declared = await request(up, token, post, "Content-Length: 104857600")
        assert status_of(await raw(up, declared)) == 413
        piece = b"x" * 65_536
        sent = [declared] + [piece] * 1_600
        assert status_of(await raw(up, *sent)) in (0, 413)
        chunk = b"10000\r\n" + piece + b"\r\n"
        endless = await request(up, token, post, "Transfer-Encoding: chunked")
        assert status_of(await raw(up, endless, *[chunk] * 1_600)) in (0, 413)
        brief = [endless, *[chunk] * 20, b"0\r\n\r\n"]
        assert status_of(await raw(up, *brief)) == 413
        many = [f"X-{number}: 1" for number in range(10_000)]
        flood = await request(up, token, "GET /v1/me HTTP/1.1", *many)
        assert status_of(await raw(up, flood)) in (0, 400)
        some = [f"X-{number}: 1" for number in range(200)]
        assert (
            status_of(await raw(up, await request(up, token, "GET /v1/me HTTP/1.1", *some))) == 400
        )
        long = await request(up, token, "GET /v1/me HTTP/1.1", "X-One: " + "a" * 1_000_000)
        assert status_of(await raw(up, long)) in (0, 400)
        assert await healthy(up)


async def test_a_head_over_the_limit_is_refused_also_when_sent_in_one_piece(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        get = "GET /v1/me HTTP/1.1"
        fits = await request(up, token, get, "Connection: close", "X-One: " + "a" * 30_000)
        assert status_of(await raw(up, fits)) == 200
        for size in (33_000, 40_000, 60_000):
            long = await request(up, token, get, "X-One: " + "a" * size)
            answer = await raw(up, long)
            assert status_of(answer) == 400, size
            assert answer.count(b"HTTP/1.1 ") == 1
        line = await request(up, token, f"GET /v1/me?{'a' * 33_000} HTTP/1.1")
        assert status_of(await raw(up, line)) == 400
        good = await request(up, token, get)
        answer = await raw(up, good + long)
        assert (answer.count(b"HTTP/1.1 200"), answer.count(b"HTTP/1.1 400")) == (1, 1)
        assert await healthy(up)


async def test_other_http_versions_are_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        for version in ("HTTP/9.9", "HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/1.01", "http/1.1"):
            answer = await raw(up, await request(up, token, f"GET /v1/me {version}"))
            assert status_of(answer) == 400, version
        old = await request(up, token, "GET /v1/me HTTP/1.0")
        assert status_of(await raw(up, old)) == 200
        assert await healthy(up)


UNPARSEABLE_BODIES = {
    "open brackets": b"[" * 200_000,
    "open objects": b'{"a":' * 100_000,
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "invalid UTF-8": b'{"message":"\xff\xfe\xc3("}',
    "invalid UTF-8 in a name": b'{"\xff":1}',
    "half a surrogate": b'{"message":"\\ud800"}',
    "no JSON": b"\x00\x01",
}
NESTED_DEPTHS = (98, 900)


async def test_a_request_without_its_body_is_refused_in_plain_words(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        client = up.client(await up.house.token("runs:write", "agents:invoke"))
        answer = await send(client, "post", "/v1/runs", b"")
        assert answer.status == 422
        assert "The request has no body. Send a JSON object" in answer.json["error"]["message"]


@pytest.mark.slow
async def test_a_body_that_cannot_be_parsed_is_a_client_error_on_every_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(port=0, requests_per_minute=1_000_000)
    async with running_service(tmp_path, settings=settings) as up:
        client = up.client(await up.house.token("*", "human"))
        document = (await client.get("/openapi.json")).json
        tried = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {})
                if "application/json" not in content:
                    continue
                where = re.sub(r"\{[^}]*\}", "x", path.replace("{number}", "1"))
                for name, body in UNPARSEABLE_BODIES.items():
                    tried += 1
                    answer = await send(client, method, where, body)
                    assert answer.status == 400, (method, path, name, answer.body[:300])
                for name in content["application/json"]["schema"].get("properties", {"x": 0}):
                    for depth in NESTED_DEPTHS:
                        nested = b'{"a":' * depth + b"[]" + b"}" * depth
                        body = b'{"%s":%s}' % (name.encode(), nested)
                        answer = await send(client, method, where, body)
                        assert answer.status < 500, (method, path, name, answer.body[:300])
        assert tried > 100
        assert "Traceback" not in caplog.text
        assert await healthy(up)


async def send(client: Client, method: str, path: str, body: bytes) -> Answer:
    headers = client.headers({"content-type": "application/json"})
    async with client.http.request(
        method, client.url + path, data=body, headers=headers
    ) as response:
        return Answer(response.status, response.headers, await response.read())


async def test_fault_64_a_wrong_host_header_is_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        for host in ("evil.example", "127.0.0.1:1", "", "localhost@evil.example"):
            answer = await up.client(token).get("/v1/me", host=host)
            assert answer.status in (400, 421), host
        none = b"GET /v1/me HTTP/1.1\r\n\r\n"
        assert status_of(await raw(up, none)) == 400
        port = urlsplit(up.url).port
        assert (await up.client(token).get("/v1/me", host=f"localhost:{port}")).status == 200


async def test_only_configured_cors_origins_are_allowed(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, origins=("https://app.example",), stop_within_s=1)
    async with running_service(tmp_path, settings=settings) as up:
        ann = await up.client_with("*")
        strange = await ann.get("/v1/me", origin="https://evil.example")
        assert (strange.status, strange.code) == (403, "unknown_origin")
        own = await ann.get("/v1/me", origin=up.url)
        assert own.status == 200
        known = await ann.get("/v1/me", origin="https://app.example")
        assert known.headers["access-control-allow-origin"] == "https://app.example"
        asked = {"origin": "https://app.example", "access_control_request_method": "POST"}
        before = await up.client("").ask("OPTIONS", RUNS, **asked)
        assert before.status == 204
        assert "authorization" in before.headers["access-control-allow-headers"]
        asked["origin"] = "https://evil.example"
        assert (await up.client("").ask("OPTIONS", RUNS, **asked)).status == 403


async def test_every_path_but_health_and_docs_requires_a_token(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        nobody = up.client("")
        for path in ("/health/live", "/health/ready", "/docs", "/openapi.json"):
            assert (await nobody.get(path)).status == 200, path
        for path in (RUNS, "/metrics", "/nothing", "/ui", "//docs", "/docs/x"):
            answer = await nobody.get(path)
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
        for shown in ("Bearer x", "Basic eDp5", "Bearer", "Bearer ec_abc_def", "Bearer ec__"):
            assert (await nobody.get(RUNS, authorization=shown)).code == "unauthorized"


async def test_every_operation_of_the_openapi_document_has_a_declared_tag(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        document = (await up.client("").get("/openapi.json")).json
        declared = {tag["name"] for tag in document["tags"]}
        operations = [
            operation for item in document["paths"].values() for operation in item.values()
        ]
        assert {tag for operation in operations for tag in operation["tags"]} <= declared
        page = (await up.client("").get("/docs")).body.decode()
        assert "/v1/events" in page and "/v1/figures" in page


async def test_the_docs_page_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        page = (await up.client("").get("/docs")).body.decode()
        assert "/v1/runs/{run_id}/events" in page
        assert "<script" not in page
        assert "http://" not in page.replace("http://www.w3.org", "")
        assert "https://" not in page


async def test_a_rate_limited_caller_gets_429_with_retry_after(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, requests_per_minute=60, burst=5, stop_within_s=1)
    async with running_service(tmp_path, settings=settings) as up:
        ann, bob = await up.client_with("*"), await up.client_with("*")
        answers = [await ann.get("/v1/me") for _ in range(7)]
        assert [answer.status for answer in answers[:5]] == [200] * 5
        assert answers[-1].status == 429
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
        assert (await bob.get("/v1/me")).status == 200


async def test_an_incomplete_body_times_out_with_408(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, body_seconds=0.2, stop_within_s=1)
    async with running_service(tmp_path, settings=settings) as up:
        token = await up.house.token("*")
        slow = await request(up, token, f"POST {RUNS} HTTP/1.1", "Content-Length: 100", body=b"{")
        answer = await raw(up, slow)
        assert status_of(answer) == 408
        assert await healthy(up)


async def test_a_client_disconnect_during_the_body_is_not_logged_as_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        half = await request(up, token, f"POST {RUNS} HTTP/1.1", "Content-Length: 100", body=b"{")
        address = urlsplit(up.url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(half)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await healthy(up)
    assert "failed" not in caplog.text


async def test_an_unavailable_store_is_answered_with_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")

        async def away(self: TokenStore, id_: str) -> None:
            raise StoreUnavailable("the server is gone")

        monkeypatch.setattr(TokenStore, "get", away)
        answer = await ann.get("/v1/sessions")
        assert (answer.status, answer.code) == (503, "store")
        assert await healthy(up)


async def test_invalid_bodies_paths_and_methods_get_their_error_codes(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        wrong = await ann.ask("POST", RUNS, "not an object")
        assert (wrong.status, wrong.code) == (422, "invalid")
        async with ann.http.post(
            f"{up.url}{RUNS}",
            data=b"{",
            headers={**ann.headers(), "content-type": "application/json"},
        ) as response:
            assert response.status == 400
        assert (await ann.get("/v1/nothing")).code == "not_found"
        assert (await ann.ask("PUT", RUNS)).status == 405


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n", ""),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n", "folded header"),
        (b"GET / HTTP/1.1\nHost: a\r\n", "line end"),
        (b"GET / HTTP/1.1\r\nHost: a\rb\r\n", "line end"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n", "header given twice"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101, "too many headers"),
        (b"P / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", "two lengths"),
    ],
)
def test_a_malformed_request_head_is_refused_with_its_problem(head: bytes, problem: str) -> None:
    assert problem_with(head) == problem


def test_rate_limit_tokens_refill_over_time_per_caller() -> None:
    now = [0.0]
    rates = RequestRateLimiter(60, 2, clock=lambda: now[0])
    assert [rates.take("a") for _ in range(3)] == [0.0, 0.0, 1.0]
    assert rates.take("b") == 0.0
    now[0] = 1.0
    assert rates.take("a") == 0.0
    assert rates.take("a") == 1.0
