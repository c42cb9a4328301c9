"""Builds the MCP server of `evoclaw mcp serve`.

The options of the MCP server: what it serves, and where it listens.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from evoclaw.api.mcp_server import McpTools
    from evoclaw.core.pipeline import Step
    from evoclaw.core.ports import Approver, Executor
    from evoclaw.core.routes import Route
    from evoclaw.governance.autonomy import Level


CLIENT_AGENT = "mcp"
"""The agent that calls of MCP clients are counted and audited as."""


async def mcp_over_stdio(options: McpServerOptions, env: Mapping[str, str]) -> None:
    """Serve until the client closes standard input."""
    from evoclaw.api.mcp_stdio import serve_stdio

    async with _tools(options, env) as tools:
        await serve_stdio(tools)


@asynccontextmanager
async def mcp_over_http(
    options: McpServerOptions, http: McpHttpOptions, env: Mapping[str, str]
) -> AsyncGenerator[str]:
    """Serve over HTTP while the block runs; yields the address."""
    from evoclaw.api.mcp_http import serving_http

    async with (
        _tools(options, env) as tools,
        serving_http(
            tools, host=http.host, port=http.port, token=http.token, names=http.host_names
        ) as url,
    ):
        yield url


@asynccontextmanager
async def _tools(options: McpServerOptions, env: Mapping[str, str]) -> AsyncGenerator[McpTools]:
    from evoclaw.api.mcp.prompts import SkillPrompts
    from evoclaw.api.mcp_server import McpTools
    from evoclaw.governance.client_calls import CancelOnStop, PerCallBudget
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.governance.stops import cancel_on_stop
    from evoclaw.orchestrator.fleet.edge_routes import fleet_routes
    from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls, only_reads
    from evoclaw.skills.active import ActiveSkillTools
    from evoclaw.wiring.fleet import open_fleet
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.local_run import capabilities_for_level
    from evoclaw.wiring.pipelines import local_pipeline
    from evoclaw.wiring.toolbox import open_toolbox, toolbox_routes

    capabilities = capabilities_for_level(options.level, env)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(
            open_governance(env, CLIENT_AGENT, long_running=True)
        )
        steps: list[Step] = [PermittedTools(capabilities)]
        routes: Sequence[Executor | Route]
        if options.on is not None:
            orchestrator = await stack.enter_async_context(open_fleet(env))
            routes = await fleet_routes(
                orchestrator, options.on, capabilities, options.edge_timeout_s
            )
            governance = replace(
                governance,
                forwarded=forwarded_calls(orchestrator.fleet),
                only_reads=only_reads(orchestrator.fleet),
            )
            workspace, prompts = None, None
        else:
            toolbox = await stack.enter_async_context(open_toolbox(options.workspace, env))
            routes, workspace = toolbox_routes(toolbox, options.tools), options.workspace
            steps.append(ActiveSkillTools(toolbox.skill_registry))
            prompts = SkillPrompts(toolbox.skill_registry)
        stopping, budgets = CancelOnStop(), PerCallBudget(governance.call_budget)
        pipeline = local_pipeline().build(routes, [*steps, *governance.steps(), stopping])
        rules = governance.rules(options.level, capabilities, workspace, pipeline.tools)
        pipeline = pipeline.with_steps(*rules, governance.count_forwarded(budgets))
        await stack.enter_async_context(cancel_on_stop(governance.stops, stopping.cancel_all))
        yield McpTools(
            pipeline,
            pipeline.policy,
            options.approver,
            sinks=(budgets, *governance.shared_sinks()),
            prompts=prompts,
            ask_client=options.ask_client,
        )


EDGE_TIMEOUT_S = 15.0
"""Seconds that an MCP server waits for an edge."""


class McpServerOptions(Struct, frozen=True):
    """The tools that MCP clients are offered, and what their calls may do."""

    workspace: Path
    """The folder that local tools work in."""
    level: Level
    approver: Approver
    on: str | None = None
    """The edge whose tools are offered instead; `any`, or `*` for the whole fleet."""
    tools: tuple[str, ...] | None = None
    """Offer only these tools; None is all."""
    edge_timeout_s: float = EDGE_TIMEOUT_S
    ask_client: bool = True
    """Whether the user of a client that shows forms may approve its calls."""


class McpHttpOptions(Struct, frozen=True):
    """The address that HTTP is bound to, and the token of clients."""

    host: str
    port: int
    token: str = ""
    host_names: tuple[str, ...] = ()
