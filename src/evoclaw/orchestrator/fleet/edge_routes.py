"""The routes of a run to edges: to one, to any that has the tool, or to all, as the model says."""

from __future__ import annotations

from evoclaw.core.agent import Agent
from evoclaw.core.routes import Place, Route
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.fleet.nodes import FleetNodes
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.tools.catalogue import RunsOn, entries_on
from evoclaw.tools.nodes import DeviceJobs, Nodes, jobs, nodes

ANY_EDGE, EVERY_EDGE = "any", "*"
"""Instead of an edge id: any edge that has the tool; or every edge, chosen by the model."""
FLEET_TOOL_NAMES = frozenset({"edge_call", "jobs", "nodes"})
"""Tools of the orchestrator that concern the whole fleet."""


def orchestrator_tool_names() -> frozenset[str]:
    """The tools that need the stores of the orchestrator; all others run on edges."""
    return frozenset(entry.name for entry in entries_on(RunsOn.ORCHESTRATOR)) - FLEET_TOOL_NAMES


async def fleet_routes(
    orchestrator: Orchestrator, on: str, capabilities: frozenset[str], timeout_s: float
) -> list[Route]:
    """The routes of a run outside the service: it waits for its edges."""
    if on not in (ANY_EDGE, EVERY_EDGE):
        await orchestrator.wait_for(on, timeout_s)
        return [Route(orchestrator.edge(on), Place.EDGE)]
    await orchestrator.wait_until_settled(timeout_s)
    if on == EVERY_EDGE:
        return _fleet_tools(orchestrator, capabilities)
    return [Route(orchestrator.delegated(), Place.EDGE)]


def session_routes(orchestrator: Orchestrator, agent: Agent, session: str) -> list[Route]:
    """The routes of a run of the service, to the edges that its agent works on.

    Args:
        orchestrator: The fleet.
        agent: The definition of the agent.
        session: Its runs keep to the same edges; empty for none.
    """
    target = agent.on or ANY_EDGE
    if target not in (ANY_EDGE, EVERY_EDGE):
        return [Route(orchestrator.edge(target), Place.EDGE)]
    routes = _fleet_tools(orchestrator, agent.capabilities)
    if target == EVERY_EDGE:
        return routes
    names = orchestrator_tool_names() | FLEET_TOOL_NAMES
    return [*routes, Route(orchestrator.delegated(names, session=session), Place.EDGE)]


def _fleet_tools(orchestrator: Orchestrator, capabilities: frozenset[str]) -> list[Route]:
    """The tools about the whole fleet: call a tool on any edge, and list devices and jobs."""
    edge_call = orchestrator.edge_call(capabilities)
    injected = {Nodes: FleetNodes(orchestrator.fleet, edge_call), DeviceJobs: orchestrator.jobs()}
    devices = LocalExecutor([nodes, jobs], given=injected)
    return [Route(edge_call, Place.EDGE), Route(devices, Place.EDGE)]
