"""The ASGI application of an MCP endpoint: streamable HTTP, with resumable event streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp.server.streamable_http import EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

from evoclaw.api.mcp.endpoint import McpEndpoint
from evoclaw.api.mcp.event_store import RecentEvents, SessionEvents

MAX_SESSIONS = 500
RECONNECT_DELAY_MS = 1_000
"""How long a client waits before it connects again."""


class McpHttpSessions:
    """Serves an endpoint over HTTP while `running`."""

    def __init__(self, endpoint: McpEndpoint) -> None:
        """Serve this endpoint. The caller checks hosts, origins and tokens before."""
        self._endpoint = endpoint
        self._manager = _SessionManager(
            endpoint.server(),
            retry_interval=RECONNECT_DELAY_MS,
            max_sessions=MAX_SESSIONS,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Accept requests while the block runs."""
        async with self._manager.run():
            try:
                yield
            finally:
                if self._endpoint.subscriptions is not None:
                    await self._endpoint.subscriptions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        # The SDK compares some headers with the body, and the HTTP parser keeps trailing blanks.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self._manager.handle_request({**scope, "headers": headers}, receive, send)


class _SessionManager(StreamableHTTPSessionManager):
    """Gives each session an event store of its own: the SDK would share one among all clients."""

    _recent: RecentEvents | None = None

    @property
    def event_store(self) -> EventStore | None:
        """The store of the session that is being created."""
        if self._recent is None:
            self._recent = RecentEvents()
        return SessionEvents(self._recent)

    @event_store.setter
    def event_store(self, store: EventStore | None) -> None:
        """Ignored: the base class sets None."""
