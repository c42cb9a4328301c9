"""The MCP client of the official SDK, connected to our servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import ConfigDict

LIMIT = 20.0
"""Seconds that a request may take."""


@asynccontextmanager
async def connected(url: str, token: str = "", **options: Any) -> AsyncGenerator[Client]:
    """A client over HTTP."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=LIMIT) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, read_timeout_seconds=LIMIT, **options) as client:
            yield client


def said(result: types.CallToolResult) -> str:
    """The only text of a result."""
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def send(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """Send any request, also one that the SDK has no function for; the fields of its result."""
    request = types.Request[Any, str](method=method, params=params)
    result = await client.session.send_request(cast("Any", request), AnyResult)
    return result.model_dump(by_alias=True)


async def create_task(client: Client, tool: str, **arguments: Any) -> types.Task:
    """Call a tool as a task of 2025-11-25.

    The client of the SDK has the types of it, but refuses the result of the request.
    """
    dispatcher = getattr(client.session, "_dispatcher")  # noqa: B009
    params = {"name": tool, "arguments": arguments, "task": {"ttl": 60_000}}
    result = await dispatcher.send_raw_request("tools/call", params)
    return types.CreateTaskResult.model_validate(result).task


class AnyResult(types.Result):
    """A result with whatever fields it has."""

    model_config = ConfigDict(extra="allow")


class Person:
    """The user of a client, who fills in forms."""

    def __init__(self, action: str, **content: Any) -> None:
        self.action, self.content = action, content
        self.asked: list[types.ElicitRequestFormParams] = []

    async def __call__(self, context: object, params: Any) -> types.ElicitResult:
        self.asked.append(params)
        content = self.content if self.action == "accept" else None
        return types.ElicitResult(action=cast("Any", self.action), content=content)
