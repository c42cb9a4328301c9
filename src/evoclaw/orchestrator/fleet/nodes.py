"""The fleet for the tool `nodes`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call
from evoclaw.orchestrator.fleet.edge_call import EdgeCall
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.sanitizing import quoted

DEVICE_TOOL = "device"
"""The tool of an edge that reads its sensors."""


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
