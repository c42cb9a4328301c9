"""Tools of the whole fleet as if they were here: a call goes to an edge that has the tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.executors.edge import EdgeExecutor
from evoclaw.orchestrator.fleet import Fleet

MAX_HOPS = 3
"""Agents that a call may pass through."""


class Delegated:
    """Every tool that some edge has; least loaded first, the same edge within a session."""

    def __init__(self, fleet: Fleet, edge: Callable[[str], EdgeExecutor]) -> None:
        self._fleet, self._edge = fleet, edge
        self._version = -1
        self._tools: Toolset = Toolset()
        self._chosen: dict[str, str] = {}
        """The edge that a tool of this session went to."""

    def tools(self) -> Sequence[Tool]:
        """The tools of all edges that are there; of two of one name the first edge's."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            found: dict[str, Tool] = {}
            for member in self._fleet.online():
                for tool in self._edge(member.agent_id).tools():
                    found.setdefault(tool.name, tool)
            self._tools = Toolset(found.values())
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call to an edge that is there and has its tool."""
        able = [member.agent_id for member in self._fleet.with_tool(call.name)]
        if not able:
            text = f"Error: No agent that has {call.name!r} is online. Explain to the user."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
        before = self._chosen.get(call.name)
        chosen = before if before in able else able[0]
        self._chosen[call.name] = chosen
        return await self._edge(chosen).execute(call, progress)
