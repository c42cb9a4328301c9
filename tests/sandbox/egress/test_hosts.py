"""The rule about hosts holds for all that connects: fetches, their redirects, the browser."""

from __future__ import annotations

import asyncio

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.browser.proxy import GuardedProxy
from evoclaw.executors.url_guard import UrlGuard
from evoclaw.executors.web_fetch import WebFetcher
from evoclaw.governance.network import NetworkPolicy, NetworkSettings
from tests.support.sites import PATIENCE, Names, site


def guard(names: Names) -> UrlGuard:
    domains = NetworkPolicy(NetworkSettings(deny=("*.bad.test",)))
    return UrlGuard(["127.0.0.1/32"], resolve=names, may=domains.allows)


def known() -> Names:
    return Names({"good.test": [["127.0.0.1"]], "x.bad.test": [["127.0.0.1"]]})


async def test_a_denied_host_is_not_resolved() -> None:
    names = known()
    with pytest.raises(ToolFailure) as refused:
        await guard(names).target("https://X.bad.test./")
    assert refused.value.kind is ErrorKind.PERMISSION_DENIED
    assert names.asked == []


async def test_fault_61_a_redirect_to_a_denied_host_is_not_followed() -> None:
    names = known()
    async with site(b"") as server:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://x.bad.test:{server.port}/\r\n"
        server.answer = f"{moved}Content-Length: 0\r\n\r\n".encode()
        with pytest.raises(ToolFailure, match=r"x\.bad\.test"):
            await WebFetcher(guard(names)).fetch(f"http://good.test:{server.port}/")
        assert len(server.requests) == 1
        assert names.asked == ["good.test"]


@pytest.mark.parametrize(("host", "status"), [("good.test", b"200"), ("x.bad.test", b"403")])
async def test_browser_connections_are_checked_by_host(host: str, status: bytes) -> None:
    async with site() as server:
        proxy = GuardedProxy(guard(known()))
        await proxy.start()
        try:
            port = int(proxy.address.rpartition(":")[2])
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                head = f"GET http://{host}:{server.port}/?q HTTP/1.1\r\nHost: {host}\r\n\r\n"
                writer.write(head.encode())
                answer = await reader.read()
                writer.close()
        finally:
            await proxy.close()
        assert answer[9:12] == status
        assert len(server.requests) == (status == b"200")
        if server.requests:
            assert server.requests[0].startswith(b"GET /?q HTTP/1.1\r\n")
            assert answer.endswith(b"hello")


async def test_a_browser_tunnel_works_in_both_directions() -> None:
    async with site(b"back") as server:
        proxy = GuardedProxy(guard(known()))
        await proxy.start()
        try:
            port = int(proxy.address.rpartition(":")[2])
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"CONNECT good.test:{server.port} HTTP/1.1\r\n\r\n".encode())
                assert (await reader.readuntil(b"\r\n\r\n"))[9:12] == b"200"
                writer.write(b"anything\r\n\r\n")
                assert await reader.read() == b"back"
                writer.close()
        finally:
            await proxy.close()
