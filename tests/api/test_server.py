"""Serving over real sockets: slow watchers, certificates, and how it stops."""

from __future__ import annotations

import asyncio
import datetime
import resource
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.x509.oid import NameOID

from evoclaw.api.server import allowed_hosts, listen, serving
from evoclaw.api.settings import ServerSettings
from evoclaw.api.sse import EventStream, Watchers, frame
from evoclaw.core.errors import ConfigError
from evoclaw.providers.scripted import Scripted, calls, says
from tests.api.test_runs import RUNNER, begun, next_event, watching
from tests.support.service import Client, build_service, running_service

LINES = 12_000


async def test_fault_21_a_slow_event_reader_is_dropped_and_can_resume(
    tmp_path: Path,
) -> None:
    text = "".join(f"line {number} {'.' * 150}\n" for number in range(LINES))
    model = Scripted(calls(("work", {})), says(text))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with(*RUNNER)
        up.house.may_go_on.clear()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run_id = await begun(ann)
        address = urlsplit(up.url)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, (address.hostname, address.port))
        head = (
            f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Authorization: Bearer {ann.token}\r\nConnection: close\r\n\r\n"
        )
        await loop.sock_sendall(slow, head.encode())
        told = b""
        while b"event: call_started" not in told:
            told += await loop.sock_recv(slow, 65_536)
        up.house.may_go_on.set()
        found = await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        assert found["stop"] == "completed"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 << 10, f"{grown} KiB"
        async with asyncio.timeout(20):
            while piece := await loop.sock_recv(slow, 1 << 20):
                told += piece
        slow.close()
        ids = [int(line[4:]) for line in told.split(b"\n") if line.startswith(b"id: ")]
        assert ids == list(range(1, len(ids) + 1))
        assert b"event: dropped" in told
        assert b'{"after":%d}' % ids[-1] in told.split(b"event: dropped", 1)[1]
        rest = (await ann.get(f"/v1/runs/{run_id}/events?after={ids[-1]}")).body
        assert rest.startswith(b"id: %d\n" % (ids[-1] + 1))
        assert b"event: run_finished" in rest


async def test_stopping_sends_a_closing_event_and_ends_in_time(tmp_path: Path) -> None:
    chosen = ServerSettings(port=0, stop_within_s=2)
    model = Scripted(calls(("work", {})), says("x"))
    async with (
        asyncio.timeout(30),
        build_service(tmp_path, model, settings=chosen) as (house, app),
        house.runs.serving(),
        aiohttp.ClientSession() as http,
        AsyncExitStack() as stack,
    ):
        house.may_go_on.clear()
        async with serving(app, chosen) as url:
            ann = Client(http, url, await house.token(*RUNNER))
            run_id = await begun(ann)
            path = f"/v1/runs/{run_id}/events"
            stream = await stack.enter_async_context(watching(ann, path))
            assert (await next_event(stream)) is not None
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 4
        last = ""
        while (event := await next_event(stream)) is not None:
            last = event.event
        assert last == "closing"
        house.may_go_on.set()


async def test_as_many_connections_are_served_as_the_settings_allow(tmp_path: Path) -> None:
    chosen = ServerSettings(port=0, connections=2, stop_within_s=1)
    async with running_service(tmp_path, settings=chosen) as up, AsyncExitStack() as stack:
        ann = await up.client_with(*RUNNER)
        found = [
            await stack.enter_async_context(
                ann.http.get(f"{up.url}/v1/events", headers=ann.headers())
            )
            for _ in range(3)
        ]
        assert [one.status for one in found] == [200, 200, 503]


async def test_the_server_uses_a_tls_certificate(tmp_path: Path) -> None:
    certificate, key = certified(tmp_path)
    chosen = ServerSettings(port=0, tls_cert=certificate, tls_key=key, stop_within_s=1)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with running_service(tmp_path, settings=chosen) as up:
        assert up.url.startswith("https://")
        nobody = up.client("")
        async with nobody.http.get(f"{up.url}/health/live", ssl=trusting) as response:
            assert response.status == 200


async def test_an_unusable_certificate_is_a_configuration_error(tmp_path: Path) -> None:
    missing = ServerSettings(port=0, tls_cert=tmp_path / "no.pem", tls_key=tmp_path / "no.key")
    async with build_service(tmp_path) as (_, app):
        with pytest.raises(ConfigError, match="certificate"):
            async with serving(app, missing):
                pass


async def test_a_tls_key_without_a_certificate_is_refused(tmp_path: Path) -> None:
    half = ServerSettings(port=0, tls_key=tmp_path / "key.pem")
    async with build_service(tmp_path) as (_, app):
        with pytest.raises(ConfigError, match="tls_cert"):
            async with serving(app, half):
                pass


async def test_a_port_in_use_is_a_configuration_error(tmp_path: Path) -> None:
    async with build_service(tmp_path) as (_, app), serving(app, ServerSettings(port=0)) as url:
        port = urlsplit(url).port or 0
        with pytest.raises(ConfigError, match="cannot listen"):
            async with serving(app, ServerSettings(port=port)):
                pass


def test_allowed_hosts_follow_the_bind_address_and_configured_names() -> None:
    assert allowed_hosts("0.0.0.0", 80, ()) is None
    named = allowed_hosts("0.0.0.0", 80, ("Claw.example",))
    assert named is not None
    assert {"claw.example", "claw.example:80"} <= named
    assert "localhost:8433" in (allowed_hosts("127.0.0.1", 8433, ()) or ())


def certified(folder: Path) -> tuple[Path, Path]:
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    from ipaddress import ip_address

    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, secret


async def test_an_internal_stream_error_is_sent_without_its_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        yield frame("text", {"text": "hello"})
        raise RuntimeError("the secret place")

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message["body"])

    async def stay() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(frames(), Watchers(ServerSettings()), "somebody")
    async with asyncio.timeout(20):
        await stream.send_body(send, stay)
    told = b"".join(sent)
    assert b"hello" in told
    assert b"event: error" in told
    assert b"internal" in told
    assert b"secret place" not in told
    assert sent[-1] == b""
    assert "secret place" in caplog.text


def test_the_listening_socket_sets_tcp_nodelay() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
