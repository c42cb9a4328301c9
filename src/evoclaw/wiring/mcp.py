"""Our tools for anybody's MCP client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.api.mcp_server import McpTools
    from evoclaw.cli.mcp import Door, Wanted


async def mcp_over_stdio(wanted: Wanted, env: Mapping[str, str]) -> None:
    """Serve until the client closes our input."""
    from evoclaw.api.mcp_stdio import serve_stdio

    async with _tools(wanted, env) as tools:
        await serve_stdio(tools)


@asynccontextmanager
async def mcp_over_http(wanted: Wanted, door: Door, env: Mapping[str, str]) -> AsyncGenerator[str]:
    """Serve while the block runs; gives the address."""
    from evoclaw.api.mcp_http import serving_http

    async with (
        _tools(wanted, env) as tools,
        serving_http(
            tools, host=door.host, port=door.port, token=door.token, names=door.names
        ) as url,
    ):
        yield url


@asynccontextmanager
async def _tools(wanted: Wanted, env: Mapping[str, str]) -> AsyncGenerator[McpTools]:
    from evoclaw.api.mcp_server import McpTools
    from evoclaw.wiring.fleet import fleet_executor, open_fleet
    from evoclaw.wiring.local import box_executor, capabilities_at, policy
    from evoclaw.wiring.toolbox import open_toolbox

    held = capabilities_at(wanted.level)
    rules = policy(wanted.level, held)
    if wanted.on is not None:
        async with open_fleet(env) as orchestrator:
            executor = await fleet_executor(orchestrator, wanted.on, held, wanted.wait)
            yield McpTools(executor, rules, wanted.approver, capabilities=held)
        return
    async with open_toolbox(wanted.workspace, env) as box:
        executor = box_executor(box, held, wanted.tools)
        yield McpTools(executor, rules, wanted.approver, capabilities=held)
