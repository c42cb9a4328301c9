"""Builds the MCP server of `evoclaw mcp serve`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.api.mcp_server import McpTools
    from evoclaw.core.pipeline import Step
    from evoclaw.core.ports import Executor
    from evoclaw.core.routes import Route
    from evoclaw.wiring.mcp_requests import Door, Wanted

CLIENT = "mcp"
"""The agent that calls of MCP clients are counted and audited as."""


async def mcp_over_stdio(wanted: Wanted, env: Mapping[str, str]) -> None:
    """Serve until the client closes standard input."""
    from evoclaw.api.mcp_stdio import serve_stdio

    async with _tools(wanted, env) as tools:
        await serve_stdio(tools)


@asynccontextmanager
async def mcp_over_http(wanted: Wanted, door: Door, env: Mapping[str, str]) -> AsyncGenerator[str]:
    """Serve over HTTP while the block runs; yields the address."""
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
    from evoclaw.governance.client_calls import CancelOnStop, EachCall
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.governance.stops import ended_by
    from evoclaw.orchestrator.fleet.forwarding import forwarded_calls
    from evoclaw.skills.skill_tools import SkillsInUse
    from evoclaw.wiring.fleet import fleet_routes, open_fleet
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.local import box_routes, capabilities_at
    from evoclaw.wiring.pipelines import local_pipeline
    from evoclaw.wiring.toolbox import open_toolbox

    capabilities = capabilities_at(wanted.level, env)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(open_governance(env, CLIENT, keeps_on=True))
        steps: list[Step] = [PermittedTools(capabilities)]
        routes: Sequence[Executor | Route]
        if wanted.on is not None:
            orchestrator = await stack.enter_async_context(open_fleet(env))
            routes = await fleet_routes(orchestrator, wanted.on, capabilities, wanted.wait)
            governance = replace(governance, forwarded=forwarded_calls(orchestrator.fleet))
            workspace = None
        else:
            toolbox = await stack.enter_async_context(open_toolbox(wanted.workspace, env))
            routes, workspace = box_routes(toolbox, wanted.tools), wanted.workspace
            steps.append(SkillsInUse(toolbox.shelf))
        stopping, budgets = CancelOnStop(), EachCall(governance.budget_of)
        pipeline = local_pipeline().build(routes, [*steps, *governance.steps(), stopping])
        rules = governance.rules(wanted.level, capabilities, workspace, pipeline.tools)
        pipeline = pipeline.with_steps(*rules, governance.counted(budgets))
        await stack.enter_async_context(ended_by(governance.stops, stopping.end))
        yield McpTools(
            pipeline,
            pipeline.policy,
            wanted.approver,
            capabilities=capabilities,
            sinks=(budgets, *governance.every_run()),
        )
