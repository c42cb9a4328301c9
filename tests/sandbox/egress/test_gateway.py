"""The egress proxy: what it passes, what it refuses, what it remembers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from evoclaw.executors.url_guard import UrlGuard
from evoclaw.governance.network import NetworkPolicy, NetworkSettings
from evoclaw.sandbox.egress.gateway import EgressGateway, EgressLimits
from tests.support.sites import PATIENCE, GatewayHarness, Names, open_gateway, site
from tests.support.waiting import until


def get(host: str, port: int, path: str = "/x?y=1") -> str:
    return f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"


async def test_an_allowed_host_is_reached_and_recorded() -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        answer = await way.ask(get("good.test", server.port))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nhello")
        assert server.requests[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")
        (connection,) = await way.wait_for_reports()
        assert (connection.host, connection.port, connection.refused) == (
            "good.test",
            server.port,
            "",
        )
        assert connection.sent == len(server.requests[0])
        assert connection.received == len("hello")


async def test_an_unlisted_host_is_refused_with_a_reason() -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        answer = await way.ask(get("denied.test", server.port))
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert b"'denied.test' was not contacted" in answer
        assert way.names.asked == []
        assert server.requests == []
        (connection,) = await way.wait_for_reports()
        assert (connection.host, connection.received) == ("denied.test", 0)
        assert "not in `commands`" in connection.refused


async def test_a_connect_tunnel_to_an_allowed_host_works_in_both_directions() -> None:
    async with site(b"back") as server, open_gateway("good.test", ports=[server.port]) as way:
        reader, writer = await asyncio.open_unix_connection(way.gateway.socket)
        writer.write(f"CONNECT good.test:{server.port} HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            assert await reader.readuntil(b"\r\n\r\n")
            writer.write(b"anything\r\n\r\n")
            assert await reader.readexactly(4) == b"back"
        writer.close()
        (connection,) = await way.wait_for_reports()
        assert (connection.sent, connection.received) == (12, 4)


@pytest.mark.parametrize("method", ["GET http://denied.test:{0}/", "CONNECT denied.test:{0}"])
async def test_a_connect_tunnel_to_a_denied_host_is_refused(method: str) -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        answer = await way.ask(f"{method.format(server.port)} HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert server.requests == []


async def test_a_port_outside_the_allowed_ports_is_refused() -> None:
    async with site() as server, open_gateway("good.test", ports=[80, 443]) as way:
        answer = await way.ask(f"CONNECT good.test:{server.port} HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"may not connect to this port" in answer
        assert server.requests == []


async def test_other_ports_of_a_reload_hold_for_the_next_request() -> None:
    async with site() as server:
        domains = NetworkPolicy(NetworkSettings(commands=("good.test",), ports=(443,)))
        guard = UrlGuard(["127.0.0.1/32"], resolve=Names({"good.test": [["127.0.0.1"]]}))
        async with AsyncExitStack() as stack:
            gateway = EgressGateway(
                domains.allows_for_commands, guard=guard, may_use_port=domains.allows_port
            )
            way = GatewayHarness({"good.test"}, [])
            way.gateway = gateway
            await gateway.start()
            stack.push_async_callback(gateway.close)
            refused = await way.ask(get("good.test", server.port))
            assert b"may not connect to this port" in refused

            domains.use(NetworkSettings(commands=("good.test",), ports=(server.port,)))
            assert (await way.ask(get("good.test", server.port))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "0.0.0.0",
    ],
)
async def test_fault_61_an_allowed_host_resolving_to_a_private_address_is_refused(
    address: str,
) -> None:
    names = Names({"good.test": [[address]]})
    async with (
        site() as server,
        open_gateway("good.test", ports=[server.port], names=names, loopback=False) as way,
    ):
        answer = await way.ask(get("good.test", server.port))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert server.requests == []


async def test_fault_61_every_dns_lookup_of_a_host_is_checked_again() -> None:
    names = Names({"good.test": [["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1"]]})
    async with site() as server, open_gateway("good.test", ports=[server.port], names=names) as way:
        statuses = [(await way.ask(get("good.test", server.port)))[9:12] for _ in range(3)]
        assert statuses == [b"200", b"403", b"403"]
        assert len(names.asked) == 3
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"]
)
async def test_fault_61_spellings_of_the_loopback_are_refused(host: str) -> None:
    def everything(_host: str) -> bool:
        return True

    async with site() as server, open_gateway(ports=[server.port], loopback=False) as way:
        way.gateway._may = everything  # pyright: ignore[reportPrivateUsage]
        for text in (f"GET http://{host}:{server.port}/", f"CONNECT {host}:{server.port}"):
            answer = await way.ask(f"{text} HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 403 "), answer
        assert server.requests == []


@pytest.mark.parametrize(
    "head",
    [
        "GET http://good.test:{0}/ HTTP/1.1\r\nHost: denied.test\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1\r\nHost: good.test:{0}\r\nHost: denied.test\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1\r\nHost: good.test:{0}\nX: y\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1\r\nX: y\r\n Host: denied.test\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1\r\nHost : denied.test\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        "POST http://good.test:{0}/ HTTP/1.1\r\nContent-Length: 3\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST http://good.test:{0}/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "GET http://good.test:{0}/ HTTP/1.1 HTTP/1.1\r\n\r\n",
        "GET http://good.test:{0}/\tX HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:{0}\r\n\r\n",
        "GET https://good.test:{0}/ HTTP/1.1\r\n\r\n",
        "GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        "CONNECT good.test HTTP/1.1\r\n\r\n",
        "CONNECT u@good.test:{0} HTTP/1.1\r\n\r\n",
        "\r\n\r\n",
        "\x05\x01\x00\r\n\r\n",
    ],
)
async def test_an_ambiguous_request_is_not_forwarded(head: str) -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        answer = await way.ask(head.format(server.port))
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert server.requests == []


async def test_a_user_name_in_the_url_is_refused() -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        answer = await way.ask(f"GET http://good.test@denied.test:{server.port}/ HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert server.requests == []


async def test_a_pipelined_second_request_is_not_forwarded() -> None:
    async with site() as server, open_gateway("good.test", ports=[server.port]) as way:
        first = get("good.test", server.port)
        second = "GET /secret HTTP/1.1\r\nHost: denied.test\r\n\r\n"
        answer = await way.ask(first + second)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"Connection: close" in answer
        assert b"denied.test" not in server.requests[0]
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "body", "passed"),
    [
        ("Content-Length: 8", "ab\r\n\r\ncd", "ab\r\n\r\ncd"),
        (
            "Transfer-Encoding: chunked",
            "4;x=y\r\nab\r\n\r\n0\r\nX: y\r\n\r\n",
            "4\r\nab\r\n\r\n0\r\n\r\n",
        ),
    ],
)
async def test_exactly_the_declared_request_body_is_forwarded(
    headers: str, body: str, passed: str
) -> None:
    async with site(b"") as server, open_gateway("good.test", ports=[server.port]) as way:
        head = f"POST http://good.test:{server.port}/ HTTP/1.1\r\n{headers}\r\n\r\n"
        _, writer = await asyncio.open_unix_connection(way.gateway.socket)
        whole = passed.encode()
        writer.write((head + body + "GET /secret HTTP/1.1\r\n\r\n").encode())
        await until(lambda: server.requests[:1] != [] and server.requests[0].endswith(whole))
        writer.close()
        await way.wait_for_reports()
        assert server.requests[0].partition(b"\r\n\r\n")[2] == whole


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (EgressLimits(connection_bytes=1 << 20), "in one connection"),
        (EgressLimits(total_bytes=1 << 20), "in total"),
    ],
)
async def test_transferred_bytes_are_limited(limits: EgressLimits, why: str) -> None:
    async with (
        site(endless=True) as server,
        open_gateway("good.test", ports=[server.port], limits=limits) as way,
    ):
        reader, writer = await asyncio.open_unix_connection(way.gateway.socket)
        writer.write(f"CONNECT good.test:{server.port} HTTP/1.1\r\n\r\ngo".encode())
        received = 0
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                while piece := await reader.read(65536):
                    received += len(piece)
        writer.close()
        assert received <= 1 << 20
        (connection,) = await way.wait_for_reports()
        assert why in connection.refused
        if "all" in why:
            assert b"403" in await way.ask(f"CONNECT good.test:{server.port} HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (EgressLimits(idle_seconds=0.05), "idle"),
        (EgressLimits(seconds=0.05), "took too long"),
    ],
)
async def test_connection_time_is_limited(limits: EgressLimits, why: str) -> None:
    async with (
        site(b"") as server,
        open_gateway("good.test", ports=[server.port], limits=limits) as way,
    ):
        assert b"200" not in await way.ask(get("good.test", server.port))
        (connection,) = await way.wait_for_reports()
        assert why in connection.refused


async def test_concurrent_connections_are_limited() -> None:
    limits = EgressLimits(connections=1)
    async with (
        site(b"") as server,
        open_gateway("good.test", ports=[server.port], limits=limits) as way,
    ):
        _, held = await asyncio.open_unix_connection(way.gateway.socket)
        held.write(get("good.test", server.port).encode())
        await until(lambda: server.requests != [])
        assert (await way.ask(get("good.test", server.port))).startswith(b"HTTP/1.1 503 ")
        held.close()


async def test_closing_the_gateway_closes_connections_and_removes_the_socket() -> None:
    async with site(b"") as server:
        async with open_gateway("good.test", ports=[server.port]) as way:
            reader, writer = await asyncio.open_unix_connection(way.gateway.socket)
            writer.write(get("good.test", server.port).encode())
            await until(lambda: server.requests != [])
            folder = Path(way.gateway.socket).parent
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        assert not folder.exists()


async def test_the_gateway_socket_folder_is_private() -> None:
    async with open_gateway("good.test", ports=[80]) as way:
        assert Path(way.gateway.socket).parent.stat().st_mode & 0o777 == 0o700


async def test_an_unreachable_server_gives_bad_gateway() -> None:
    async with site() as server:
        port = server.port
    async with open_gateway("good.test", ports=[port]) as way:
        assert (await way.ask(get("good.test", port))).startswith(b"HTTP/1.1 502 ")
