"""Our tools for anybody's MCP client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.api.mcp_server import McpTools
    from evoclaw.wiring.mcp_requests import Door, Wanted

CLIENT = "mcp"
"""As whom calls of MCP clients are counted and written down."""


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
    from evoclaw.governance.chain import Chain
    from evoclaw.governance.stops import ended_by
    from evoclaw.wiring.clients import EachCall, Endable
    from evoclaw.wiring.fleet import fleet_executor, open_fleet
    from evoclaw.wiring.governing import open_governance
    from evoclaw.wiring.local import box_executor, capabilities_at
    from evoclaw.wiring.passing import passed_on
    from evoclaw.wiring.toolbox import open_toolbox

    held = capabilities_at(wanted.level, env)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(open_governance(env, CLIENT, keeps_on=True))
        if wanted.on is not None:
            orchestrator = await stack.enter_async_context(open_fleet(env))
            executor = await fleet_executor(orchestrator, wanted.on, held, wanted.wait)
            governance = replace(governance, passed=passed_on(orchestrator.fleet))
            workspace = None
        else:
            box = await stack.enter_async_context(open_toolbox(wanted.workspace, env))
            executor, workspace = box_executor(box, held, wanted.tools), wanted.workspace
        around = Endable(governance.around(executor))
        budgets = EachCall(governance.budget_of)
        rules = governance.rules(wanted.level, held, workspace, around.tools)
        await stack.enter_async_context(ended_by(governance.stops, around.end))
        yield McpTools(
            around,
            Chain((*rules, governance.counted(budgets))),
            wanted.approver,
            capabilities=held,
            sinks=(budgets, *governance.every_run()),
        )
