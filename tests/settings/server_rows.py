"""`[server]` in `evoclaw.toml`: what each key changes for clients of the HTTP service."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.wiring.http import serving_http
from tests.settings.rows import Built, Elsewhere, Observe, Row, Rows, inside

HEALTH = "/health/live"
ME = "/v1/me"
EVENTS = "/v1/events"
TLS = '[server]\ntls_cert = "FOLDER/server.pem"\n'


class HttpService:
    """The service of the settings, on a free port, and a client of it."""

    def __init__(self, here: Built, url: str, token: str, http: aiohttp.ClientSession) -> None:
        self._here, self.url, self._http = here, url, http
        self._headers = {"authorization": f"Bearer {token}"}

    async def status(self, path: str = ME, *, data: bytes | None = None, **headers: str) -> int:
        """The status of the answer to a request of the owner."""
        method = "GET" if data is None else "POST"
        return await self.anonymous_status(path, method, data, self._headers | headers)

    async def anonymous_status(
        self,
        path: str = ME,
        method: str = "GET",
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        """The status of the answer to a request without a token."""
        url = self.url + path
        async with self._http.request(method, url, data=data, headers=headers) as answer:
            return answer.status

    async def statuses_of_streams(self, count: int) -> list[int]:
        """The statuses of so many event streams that are open at the same time."""
        async with AsyncExitStack() as stack:
            found: list[int] = []
            for _ in range(count):
                asked = self._http.get(self.url + EVENTS, headers=self._headers)
                found.append((await stack.enter_async_context(asked)).status)
            return found


async def _start(here: Built) -> HttpService:
    made = await here.service()
    server = replace(made.settings.server, port=0)
    url = await here.stack.enter_async_context(serving_http(made, server, here.env))
    login = msgspec.json.decode(await asyncio.to_thread((here.folder / "api.json").read_bytes))
    trusted = None
    if url.startswith("https:"):
        trusted = ssl.create_default_context(cafile=str(here.folder / "ca.pem"))
    # A connection for each request: the service counts them.
    connector = aiohttp.TCPConnector(ssl=trusted or True, force_close=True)
    http = await here.stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    return HttpService(here, url, login["token"], http)


def _http(look: Any) -> Observe:
    """What a client sees of the service."""

    async def observe(here: Built) -> Any:
        try:
            return await look(await _start(here))
        except ConfigError as problem:
            return str(problem).partition(":")[0]

    return observe


async def _host(service: HttpService) -> str:
    return service.url.rpartition(":")[0]


async def _named(service: HttpService) -> int:
    return await service.status(HEALTH, host="evo.test")


async def _from_origin(service: HttpService) -> int:
    return await service.status(origin="https://evo.test")


async def _big_body(service: HttpService) -> int:
    return await service.status("/v1/runs", data=b" " * 3_000)


async def _big_chat(service: HttpService) -> int:
    return await service.status("/v1/chat/completions", data=b" " * 3_000)


async def _embeddings(service: HttpService) -> int:
    return await service.status("/v1/embeddings", data=b'{"model": "e", "input": "hello"}')


async def _three_requests(service: HttpService) -> list[int]:
    return [await service.status() for _ in range(3)]


async def _three_failures(service: HttpService) -> list[int]:
    return [await service.anonymous_status() for _ in range(3)]


async def _health(service: HttpService) -> tuple[str, int]:
    return service.url.partition(":")[0], await service.status(HEALTH)


async def _two_streams(service: HttpService) -> Sequence[int]:
    return await service.statuses_of_streams(2)


def _arrives(key: str, value: str, shown: str) -> Row:
    """A key whose effect takes long to see: the named tests show it."""

    async def observe(here: Built) -> Any:
        return inside(await here.service(), "settings", "server", key)

    return Row(f"[server]\n{key} = {value}\n", observe, shown=shown)


def _row(line: str, look: Any, base: str = "") -> Row:
    return Row(f"[server]\n{line}\n", _http(look), f"[server]\n{base}\n")


SERVER_ROWS: Rows = {
    "server.host": _row('host = "127.0.0.2"', _host),
    "server.port": Elsewhere(
        "tests/settings/test_every_setting.py::test_the_service_listens_on_the_port_of_its_settings"
    ),
    "server.tls_cert": Row(f'{TLS}tls_key = "FOLDER/server-key.pem"\n', _http(_health)),
    "server.tls_key": Row(f'{TLS}tls_key = "FOLDER/server-key.pem"\n', _http(_health), TLS),
    "server.names": _row('names = ["evo.test"]', _named),
    "server.public_url": _row('public_url = "https://evo.test"', _named),
    "server.origins": _row('origins = ["https://evo.test"]', _from_origin),
    "server.max_body_bytes": _row("max_body_bytes = 2048", _big_body),
    "server.max_chat_body_bytes": _row(
        "max_body_bytes = 1024\nmax_chat_body_bytes = 2048", _big_chat, "max_body_bytes = 1024"
    ),
    "server.embedding_model": _row('embedding_model = "openai/e"', _embeddings),
    "server.requests_per_minute": _row(
        "burst = 1\nrequests_per_minute = 1",
        _three_requests,
        "burst = 1\nrequests_per_minute = 1000000",
    ),
    "server.burst": _row(
        "requests_per_minute = 1\nburst = 1", _three_requests, "requests_per_minute = 1\nburst = 3"
    ),
    "server.failures_per_minute": _row("failures_per_minute = 1", _three_failures),
    "server.connections": _row("connections = 1", _two_streams),
    "server.watchers": _row("watchers = 1", _two_streams),
    "server.watchers_per_caller": _row("watchers_per_caller = 1", _two_streams),
    "server.body_seconds": _arrives("body_seconds", "3.5", "tests/api/test_middleware.py"),
    "server.heartbeat_s": _arrives("heartbeat_s", "3.5", "tests/api/test_runs.py"),
    "server.stop_within_s": _arrives("stop_within_s", "0.5", "tests/api/test_server.py"),
}
