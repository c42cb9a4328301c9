"""How the data of a connection is cut into requests, whatever pieces it comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from evoclaw.api import strict_http
from evoclaw.api.strict_http import StrictProtocol, problem_with
from tests.api.test_middleware import RUNS, healthy, raw, request, status_of
from tests.support.properties import examples
from tests.support.service import running_service

GET = "GET /v1/me HTTP/1.1"
POST = f"POST {RUNS} HTTP/1.1"
CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        wrong = await request(up, token, POST, JSON, "Content-Length: 2", body=b"{}")
        first, last = (
            await request(up, token, GET),
            await request(up, token, GET, "Connection: close"),
        )
        answer = await raw(up, b"\r\n" + first + wrong + first + last)
        statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [200, 422, 200, 200]


async def test_a_request_that_comes_byte_by_byte_is_answered(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        body = b'{"message": ""}'
        length = f"Content-Length: {len(body)}"
        post = await request(up, token, POST, JSON, length, "Connection: close", body=body)
        assert status_of(await raw(up, *(bytes([byte]) for byte in post))) == 422
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        chunked = await request(up, token, POST, JSON, CHUNKED, body=chunks)
        assert status_of(await raw(up, *(bytes([byte]) for byte in chunked))) == 422


async def test_no_request_is_parsed_in_the_data_after_a_chunked_body(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        hidden = await request(up, token, GET)
        for body in (b"2\r\n{}\r\n0\r\n\r\n", b"0\r\n\r\n"):
            together = await request(up, token, POST, JSON, CHUNKED, body=body + hidden)
            answer = await raw(up, together)
            assert status_of(answer) == 400
            assert answer.count(b"HTTP/1.1 ") == 1
            apart = await request(up, token, POST, JSON, CHUNKED, body=body)
            answer = await raw(up, apart, hidden)
            assert answer.count(b"HTTP/1.1 ") <= 1
            assert b"HTTP/1.1 200" not in answer
        assert await healthy(up)


async def test_a_request_to_upgrade_is_answered_as_http_and_nothing_follows(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        asked = ("Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
        upgrade = await request(up, token, GET, *asked)
        answer = await raw(up, upgrade + await request(up, token, GET))
        assert status_of(answer) == 200
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_response_before_the_end_of_the_body_closes_the_connection(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        nothing = f"DELETE {RUNS} HTTP/1.1"
        half = await request(up, token, nothing, "Content-Length: 1000", body=b"x")
        answer = await raw(up, half)
        assert status_of(answer) == 405
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_client_that_sends_no_complete_head_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_http, "HEAD_TIMEOUT_S", 0.1)
    async with running_service(tmp_path) as up:
        token = await up.house.token("*")
        whole = await request(up, token, GET)
        address = urlsplit(up.url)
        for start in (b"", b"\r\n", b"GET / HTTP/1.1\r\nHost: ", whole + b"\r\n", whole + b"GET "):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(start)
            async with asyncio.timeout(20):
                try:
                    answer = await reader.read()
                except ConnectionError:
                    answer = b""
            assert answer.count(b"HTTP/1.1 200") <= 1
            writer.close()


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b"GET /a#b HTTP/1.1\r\nHost: a\r\n", "request target"),
        (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n", "request target"),
        (b"CONNECT b:80 HTTP/1.1\r\nHost: a\r\n", "request target"),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n", "request line or HTTP version"),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n", "request line or HTTP version"),
        (b"G(T / HTTP/1.1\r\nHost: a\r\n", "request line or HTTP version"),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\n", "no host"),
        (b"GET / HTTP/1.0\r\n", ""),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", "transfer encoding"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n",
            "transfer encoding",
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n", "length"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n", "length"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n", "header"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n", "header"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n", "header"),
    ],
)
def test_a_head_that_two_parsers_could_read_differently_is_refused(
    head: bytes, problem: str
) -> None:
    assert problem_with(head) == problem


class Socket(asyncio.Transport):
    """A transport that keeps what is written, and is read from while it is not paused."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False
        self.reads = asyncio.Event()
        self.reads.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data if not self.closed else b""

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads.clear()

    def resume_reading(self) -> None:
        self.reads.set()


async def exchange(pieces: list[bytes], answers: int) -> tuple[list[tuple[str, bytes]], Socket]:
    """What an application gets of the pieces of a connection, until it has answered so often."""
    found: list[tuple[str, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        found.append((scope["path"], body))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    config = Config(app, http=StrictProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol, socket = StrictProtocol(config, ServerState(), {}), Socket()
    protocol.connection_made(socket)
    for piece in pieces:
        await loop_until(lambda: socket.reads.is_set() or socket.closed)
        protocol.data_received(piece)
    await loop_until(lambda: socket.closed or len(found) == answers)
    await loop_until(lambda: not protocol.tasks)
    return found, socket


async def loop_until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something holds: here nothing takes real time."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


def written(number: int, body: bytes, *, chunked: bool) -> bytes:
    head = b"POST /%d HTTP/1.1\r\nHost: a\r\n" % number
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"GET /9 HTTP/1.1\r\nHost: b\r\n\r\n", b"\r\n\r\n", b"0\r\n\r\n"]),
)


@settings(max_examples=examples(200))
@given(st.lists(BODIES, min_size=1, max_size=4), st.booleans(), st.lists(st.integers(1, 30)))
async def test_requests_arrive_whole_whatever_pieces_and_bodies_they_have(
    bodies: list[bytes], chunked: bool, sizes: list[int]
) -> None:
    # A chunked request ends its connection, so only the last may be one.
    last = len(bodies) - 1
    data = b"".join(
        written(number, body, chunked=chunked and number == last)
        for number, body in enumerate(bodies)
    )
    pieces: list[bytes] = []
    for size in sizes:
        pieces, data = [*pieces, data[:size]], data[size:]
    found, socket = await exchange([piece for piece in (*pieces, data) if piece], len(bodies))
    assert found == [(f"/{number}", body) for number, body in enumerate(bodies)]
    assert socket.written.count(b"HTTP/1.1 200") == len(bodies)
    assert socket.closed == chunked
