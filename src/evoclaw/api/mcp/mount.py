"""The MCP endpoint of the HTTP service, at `/mcp`; built by the first request to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from evoclaw.api.errors import to_api_error
from evoclaw.api.problems import ApiError
from evoclaw.orchestrator.people.access import Caller

if TYPE_CHECKING:
    from evoclaw.api.dependencies import ApiDependencies
    from evoclaw.api.mcp.http_sessions import McpHttpSessions
    from evoclaw.api.mcp.service_calls import ServiceCalls

MCP_PATH = "/mcp"
STOP_TIMEOUT_S = 5.0


class McpMount:
    """Passes requests to `/mcp` to the MCP endpoint, and all others to the application.

    The SDK is imported by the first request: most services have no MCP client, and a start that
    imports it takes longer.
    """

    def __init__(self, app: ASGIApp, parts: ApiDependencies) -> None:
        """Wrap an application; the caller's token was checked before."""
        self._app, self._parts = app, parts
        self._lock = asyncio.Lock()
        self._sessions: McpHttpSessions | None = None
        self._calls: ServiceCalls | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"].rstrip("/") != MCP_PATH:
            await self._app(scope, receive, send)
            return
        try:
            sessions = await self._started()
        except ApiError as problem:
            await _send_error(problem, send)
            return
        cast("dict[str, Any]", scope)["path_template"] = MCP_PATH
        _bind_session(scope)
        await sessions(cast("Any", scope), cast("Any", receive), cast("Any", send))

    async def close(self) -> None:
        """End the sessions of all clients; their runs continue."""
        if self._calls is not None:
            self._calls.closing = True
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_TIMEOUT_S)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _started(self) -> McpHttpSessions:
        async with self._lock:
            if self._sessions is None:
                sessions, self._calls = _sessions(self._parts)
                started = asyncio.Event()
                # The SDK's task group must be left by the task that entered it.
                self._task = asyncio.create_task(self._run(sessions, started))
                await started.wait()
                self._sessions = sessions
            return self._sessions

    async def _run(self, sessions: McpHttpSessions, started: asyncio.Event) -> None:
        async with sessions.running():
            started.set()
            await self._stop.wait()


async def _send_error(problem: ApiError, send: Send) -> None:
    body = msgspec.json.encode(problem.body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _sessions(parts: ApiDependencies) -> tuple[McpHttpSessions, ServiceCalls]:
    try:
        from evoclaw.api.mcp.endpoint import McpEndpoint
        from evoclaw.api.mcp.http_sessions import McpHttpSessions
        from evoclaw.api.mcp.prompts import SkillPrompts
        from evoclaw.api.mcp.resources import ServiceResources
        from evoclaw.api.mcp.service_calls import ServiceCalls
    except ImportError as missing:
        text = f"MCP support is not installed: pip install 'evoclaw[mcp]' ({missing})"
        raise ApiError(503, "unavailable", text) from None
    calls = ServiceCalls(parts)
    prompts = None if parts.skills is None else SkillPrompts(parts.skills, needs_token=True)
    endpoint = McpEndpoint(
        calls,
        resources=ServiceResources(parts),
        prompts=prompts,
        tasks=calls,
        to_api_error=to_api_error,
    )
    return McpHttpSessions(endpoint), calls


def _bind_session(scope: HTTPScope) -> None:
    """Name the caller to the SDK, which accepts a session only from the caller that opened it."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    caller = scope["auth"]
    assert isinstance(caller, Caller), "the request gate lets no one else in"
    token = AccessToken(
        token="",
        client_id=caller.token,
        scopes=[],
        subject=caller.principal.user,
        claims={"iss": caller.tenant},
    )
    cast("dict[str, Any]", scope)["user"] = AuthenticatedUser(token)
