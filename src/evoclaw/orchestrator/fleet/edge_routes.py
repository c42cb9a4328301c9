"""The routes of a run to edges: to one, to any that has the tool, or to all, as the model says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from msgspec.structs import replace

from evoclaw.core.agent import ANY_EDGE, EVERY_EDGE, Agent
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.routes import Place, Route
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.fleet.edge_call import MAX_MACHINE_CHARS, EdgeCall
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import DEVICE_TOOL
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.sanitizing import one_line, quoted
from evoclaw.tools.catalogue import FLEET_TOOL_NAMES, RunsOn, entries_on
from evoclaw.tools.nodes import DeviceJobs, Nodes, jobs, nodes


class FleetNodes:
    """The online edges; their tools are called through `EdgeCall`."""

    def __init__(self, fleet: Fleet, edge_call: EdgeCall) -> None:
        self._fleet, self._edge_call = fleet, edge_call

    def names(self) -> Sequence[str]:
        """The online edges."""
        return [member.agent_id for member in self._fleet.online()]

    def describe(self, node: str, *, fully: bool) -> dict[str, JSON]:
        """Describe an edge, in brief or fully."""
        member = self._fleet.member(node)
        about: dict[str, JSON] = {
            "node": node,
            "summary": quoted(member.summary),
            "tools": ", ".join(member.tools.names) or "no tools",
        }
        if fully:
            beat = member.heartbeat
            about |= {"type": quoted(member.agent_type), "answers questions": member.has_model}
            if beat is not None:
                about |= {"cpu percent": beat.cpu_percent, "calls running": beat.in_flight}
            if member.problem:
                about["not offered"] = quoted(member.problem)
        return about

    async def run(
        self, node: str, action: str, params: dict[str, JSON], call: Call, progress: Progress
    ) -> ToolResult:
        """Call a tool of an edge; an action that is no tool is a sense of its `device` tool."""
        tools = self._fleet.member(node).tools
        if tools.find(action) is None and tools.find(DEVICE_TOOL) is not None:
            action, params = DEVICE_TOOL, {**params, "what": action}
        arguments: dict[str, JSON] = {"agent_id": node, "action": action, "params": params}
        return await self._edge_call.execute(replace(call, arguments=arguments), progress)


class NodeTools(LocalExecutor):
    """The tools whose argument `node` names the edge that they act on."""

    async def machine_of(self, call: Call) -> str:
        """The named edge; empty if the call names none."""
        node = call.arguments.get("node")
        return one_line(node, MAX_MACHINE_CHARS) if isinstance(node, str) else ""


@cache
def orchestrator_tool_names(*, alone: bool = False) -> frozenset[str]:
    """The tools that can run in the orchestrator; `alone` leaves out those that edges run too."""
    entries = entries_on(RunsOn.ORCHESTRATOR)
    names = [entry.name for entry in entries if not alone or RunsOn.EDGE not in entry.runs_on]
    return frozenset(names) - FLEET_TOOL_NAMES


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


def session_routes(
    orchestrator: Orchestrator, agent: Agent, session: str, on: str = ""
) -> list[Route]:
    """The routes of a run of the service, to the edges that it works on.

    The tools of edges yield: none replaces a tool of the orchestrator.

    Args:
        orchestrator: The fleet.
        agent: The definition of the agent; an edge that it names is the only one.
        session: Without a default edge, its runs keep to the same edges; empty for none.
        on: The edge that the user chose for the session, `any` or `*`; empty: the default edge.
    """
    if agent.names_edge:
        return [Route(orchestrator.edge(agent.on), Place.EDGE, yields=True)]
    target = on or agent.on or orchestrator.default_edge or ANY_EDGE
    home = "" if target in (ANY_EDGE, EVERY_EDGE) else target
    routes = _fleet_tools(orchestrator, agent.capabilities, home)
    if target == EVERY_EDGE:
        return routes
    names = orchestrator_tool_names(alone=True) | FLEET_TOOL_NAMES
    delegated = orchestrator.delegated(names, session=session, home=home)
    return [*routes, Route(delegated, Place.EDGE, yields=True)]


def _fleet_tools(
    orchestrator: Orchestrator, capabilities: frozenset[str], home: str = ""
) -> list[Route]:
    """The tools about the whole fleet: call a tool on any edge, and list devices and jobs."""
    edge_call = orchestrator.edge_call(capabilities, home=home)
    injected = {Nodes: FleetNodes(orchestrator.fleet, edge_call), DeviceJobs: orchestrator.jobs()}
    devices = NodeTools([nodes, jobs], given=injected)
    return [Route(edge_call, Place.EDGE), Route(devices, Place.EDGE)]
