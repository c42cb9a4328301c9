"""An MCP server over streamable HTTP: on this machine only, unless there is a token."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from evoclaw.api.mcp_server import McpTools
from evoclaw.core.errors import ConfigError

PATH = "/mcp"
SHORTEST_TOKEN = 16
MOST_SESSIONS = 500
PATIENCE = 3
"""Seconds in which open answers may still go out when we stop."""


@asynccontextmanager
async def serving_http(
    tools: McpTools,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    names: Iterable[str] = (),
    origins: Iterable[str] = (),
) -> AsyncGenerator[str]:
    """Serve while the block runs; gives the address.

    Args:
        tools: What is served.
        host: Where to listen. Anywhere but on this machine needs a token.
        port: 0 takes any.
        token: What clients must show as a bearer token; empty asks for none.
        names: Under which host names, or `name:port`, we are reached, beside `host` itself.
        origins: Web pages that may use it, such as `https://example.org`; none by default.
    """
    _check_door(host, token)
    listening = _listen(host, port)
    real_port: int = listening.getsockname()[1]
    hosts = _hosts(host, real_port, names)
    app = tools.server().streamable_http_app(
        streamable_http_path=PATH,
        max_sessions=MOST_SESSIONS,
        # Ours below, which is exact about ports and knows the token.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    guard = _Guard(app, hosts, _own_origins(hosts) | frozenset(origins), token)
    async with _running(guard, listening):
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{real_port}{PATH}"


@asynccontextmanager
async def _running(app: ASGIApp, listening: socket.socket) -> AsyncGenerator[None]:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=PATIENCE,
    )
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve([listening]))
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait((serving, up), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        up.cancel()
        server.should_exit = True
        await asyncio.wait([serving], timeout=2 * PATIENCE)
        serving.cancel()
        listening.close()


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever runs us, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class _Guard:
    """Lets in who comes to the right name, from no strange web page, with the token.

    A web page that has its name resolved to this machine (DNS rebinding) still sends its own name
    and its own origin.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str] | None, origins: frozenset[str], token: str
    ) -> None:
        self._app, self._hosts, self._origins = app, hosts, origins
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refuse(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refuse(self, headers: Headers) -> PlainTextResponse | None:
        if self._hosts is not None and headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("unknown host name", 421)
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            return PlainTextResponse("this origin may not use it", 403)
        if self._token and not self._has_token(headers.get("authorization", "")):
            return PlainTextResponse("a token is needed", 401, {"www-authenticate": "Bearer"})
        return None

    def _has_token(self, shown: str) -> bool:
        kind, _, token = shown.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(errors="replace"), self._token
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check_door(host: str, token: str) -> None:
    if token and len(token) < SHORTEST_TOKEN:
        raise ConfigError(f"the token must have at least {SHORTEST_TOKEN} characters")
    if not token and not is_loopback(host):
        raise ConfigError(
            f"others could reach {host}: set a token, or listen on 127.0.0.1 for this machine only"
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        raise ConfigError(f"cannot listen on {host}:{port}: {problem.strerror}") from None


def _hosts(host: str, port: int, names: Iterable[str]) -> frozenset[str] | None:
    """The `Host` headers that mean us; None if we cannot know: then the token must do."""
    named = {name.lower() for name in names}
    if host in ("0.0.0.0", "::", "") and not named:
        return None
    if is_loopback(host):
        named |= {"127.0.0.1", "localhost", "[::1]"}
    named.add(f"[{host}]" if ":" in host else host.lower())
    return frozenset(named | {f"{name}:{port}" for name in named})


def _own_origins(hosts: frozenset[str] | None) -> frozenset[str]:
    return frozenset(f"http://{host}" for host in hosts or ())
