"""Subscriptions: notifies MCP clients when a resource changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeAlias

from mcp import types
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError

from evoclaw.api.mcp.requests import Context, McpRequest
from evoclaw.api.problems import ApiError

logger = logging.getLogger(__name__)
MAX_SUBSCRIPTIONS = 1_000
"""Of all clients."""
MAX_SUBSCRIPTIONS_PER_CLIENT = 50
Changes: TypeAlias = Callable[[McpRequest, str], Coroutine[Any, Any, AsyncGenerator[None, None]]]
"""Checks that a client may read a resource, and yields at each of its changes."""


class ResourceSubscriptions:
    """The subscriptions of all clients of an endpoint."""

    def __init__(self, changes: Changes) -> None:
        """Notify clients of these changes."""
        self._changes = changes
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._streams: set[ListenHandler] = set()

    async def add(self, request: McpRequest, uri: str) -> None:
        """Notify a client of 2025-11-25 or earlier, until its connection ends."""
        key = (request.session_key, uri)
        if key in self._tasks:
            return
        own = sum(session == request.session_key for session, _ in self._tasks)
        if own >= MAX_SUBSCRIPTIONS_PER_CLIENT or len(self._tasks) >= MAX_SUBSCRIPTIONS:
            raise ApiError(429, "too_many", "Too many subscriptions. Unsubscribe from some first.")
        changes = await self._changes(request, uri)
        session = request.context.session

        async def notify() -> None:
            await session.send_resource_updated(uri)

        task = asyncio.create_task(_forward(changes, notify))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def remove(self, request: McpRequest, uri: str) -> None:
        """Stop notifying a client."""
        if (task := self._tasks.get((request.session_key, uri))) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Notify a client of 2026-07-28 or later, while its request is open."""
        uris = list(params.notifications.resource_subscriptions or ())
        if len(uris) > MAX_SUBSCRIPTIONS_PER_CLIENT:
            raise ApiError(429, "too_many", "Too many resources in one request. Name fewer.")
        if len(self._streams) >= MAX_SUBSCRIPTIONS:
            raise ApiError(429, "too_many", "Too many clients listen. Try again later.")
        watched = [(uri, await self._changes(McpRequest(context), uri)) for uri in uris]
        # A bus of its own: another client that watches the same resource is not notified twice.
        bus = InMemorySubscriptionBus()
        stream = ListenHandler(bus)

        def publisher(uri: str) -> Callable[[], Coroutine[Any, Any, None]]:
            return lambda: bus.publish(ResourceUpdated(uri))

        tasks = [asyncio.create_task(_forward(changes, publisher(uri))) for uri, changes in watched]
        self._streams.add(stream)
        try:
            return await stream(context, params)
        finally:
            self._streams.discard(stream)
            await _cancel(tasks)

    async def close(self) -> None:
        """Stop notifying all clients."""
        for stream in list(self._streams):
            stream.close()
        await _cancel(list(self._tasks.values()))


async def _forward(
    changes: AsyncGenerator[None, None], notify: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    try:
        async with aclosing(changes):
            async for _ in changes:
                await notify()
    except (MCPError, ConnectionError) as problem:
        logger.debug("a subscription ended: %s", problem)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
