"""The MCP server over streamable HTTP; beyond loopback it requires a token."""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from evoclaw.api.mcp.endpoint import McpEndpoint
from evoclaw.api.mcp.http_sessions import McpHttpSessions
from evoclaw.api.mcp_server import McpTools
from evoclaw.api.server import (
    allowed_hosts,
    is_loopback,
    listen,
    own_origins,
    running_server,
    url_host,
)
from evoclaw.api.settings import ServerSettings
from evoclaw.core.errors import ConfigError

PATH = "/mcp"
MIN_TOKEN_LENGTH = 16
SHUTDOWN_TIMEOUT_S = 3.0
"""How long open responses may continue on shutdown."""


@asynccontextmanager
async def serving_http(
    tools: McpTools | McpEndpoint,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    names: Iterable[str] = (),
    origins: Iterable[str] = (),
) -> AsyncGenerator[str]:
    """Serve while the block runs; yields the URL.

    Args:
        tools: The tools to serve, or an endpoint with more than tools.
        host: The address to listen on. Any address but loopback requires a token.
        port: 0 chooses a free port.
        token: The bearer token that clients must send; empty requires none.
        names: Further accepted `Host` headers beside `host`: `name` or `name:port`.
        origins: Allowed web origins, such as `https://example.org`; none by default.
    """
    _check_exposure(host, token)
    listening = listen(host, port)
    real_port: int = listening.getsockname()[1]
    hosts = allowed_hosts(host, real_port, names)
    sessions = McpHttpSessions(tools.endpoint() if isinstance(tools, McpTools) else tools)
    gate = _McpRequestGate(sessions, hosts, own_origins(hosts) | frozenset(origins), token)
    settings = ServerSettings(stop_within_s=SHUTDOWN_TIMEOUT_S)
    async with sessions.running(), running_server(gate, listening, settings, lifespan="off"):
        yield f"http://{url_host(host)}:{real_port}{PATH}"


class _McpRequestGate:
    """ASGI middleware that checks the path, the `Host` header, the web origin and the token.

    After DNS rebinding a web page still sends its own host name and origin, so it is refused.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str] | None, origins: frozenset[str], token: str
    ) -> None:
        self._app, self._hosts, self._origins = app, hosts, origins
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # WebSockets are not supported
        refusal = self._refuse(Headers(scope=scope))
        if refusal is None and scope["path"].rstrip("/") != PATH:
            refusal = PlainTextResponse(f"Unknown path. The MCP endpoint is {PATH}.", 404)
        await (refusal or self._app)(scope, receive, send)

    def _refuse(self, headers: Headers) -> PlainTextResponse | None:
        if self._hosts is not None and headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("Unknown host name.", 421)
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            return PlainTextResponse("This web origin is not allowed.", 403)
        if self._token and not self._has_token(headers.get("authorization", "")):
            return PlainTextResponse(
                "The token is missing or invalid. Send `Authorization: Bearer <token>`.",
                401,
                {"www-authenticate": "Bearer"},
            )
        return None

    def _has_token(self, header: str) -> bool:
        kind, _, token = header.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(errors="replace"), self._token
        )


def _check_exposure(host: str, token: str) -> None:
    if token and len(token) < MIN_TOKEN_LENGTH:
        raise ConfigError(
            f"the token is too short: it must have at least {MIN_TOKEN_LENGTH} characters"
        )
    if not token and not is_loopback(host):
        raise ConfigError(
            f"listening on {host!r} without a token would let other machines in: set a token, or "
            "listen on 127.0.0.1"
        )
