"""Tools of the whole fleet as if they were here: a call goes to an edge that has the tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult, is_object
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.executors.edge import EdgeExecutor
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import find_tool, load

HANDLES = 1_000
"""Big outputs whose place is remembered."""


class Stay:
    """Where a session was: its next run goes on there, and needs to know nothing else."""

    __slots__ = ("chosen", "kept")

    def __init__(self) -> None:
        self.chosen: dict[str, str] = {}
        """The edge that each tool went to."""
        self.kept: dict[str, str] = {}
        """The edge that each big output stayed on, by its handle."""

    def keep(self, handle: str, agent_id: str) -> None:
        """Remember where an output is; the oldest are forgotten."""
        self.kept[handle] = agent_id
        while len(self.kept) > HANDLES:
            del self.kept[next(iter(self.kept))]


class Delegated:
    """Every tool that some edge has; least loaded first, the same edge within a session."""

    def __init__(
        self,
        fleet: Fleet,
        edge: Callable[[str], EdgeExecutor],
        asked_of: Callable[[str], Awaitable[str | None]],
        *,
        besides: Collection[str] = (),
    ) -> None:
        """Make one for each run.

        Args:
            fleet: Who is there.
            edge: The executor of one of them.
            asked_of: Whom a call was sent to before, if it was.
            besides: Names that are taken: tools of edges that are called so are not offered.
        """
        self._fleet, self._edge, self._asked_of = fleet, edge, asked_of
        self._besides = frozenset(besides)
        self._version = -1
        self._tools: Toolset = Toolset()
        self._originals: dict[str, Tool] = {}
        self.stay = Stay()
        """Given on to the next run of the session."""

    def tools(self) -> Sequence[Tool]:
        """The tools of all edges that are there; of two of one name the first edge's."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            offered: dict[str, Tool] = {}
            self._originals = {}
            for member in self._fleet.online():
                for tool in self._edge(member.agent_id).tools():
                    if tool.name not in self._besides and tool.name not in offered:
                        offered[tool.name] = tool
                        original = find_tool(member, tool.name)
                        self._originals[tool.name] = tool if original is None else original
            self._tools = Toolset(offered.values(), like=self._tools)
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call to an edge that is there and has its tool."""
        handle = call.arguments.get("handle")
        there = self.stay.kept.get(handle) if isinstance(handle, str) else None
        chosen = await self._asked_of(call.request_id) or there or self._choose(call)
        if there is None:
            self.stay.chosen[call.name] = chosen
        result = await self._edge(chosen).execute(call, progress)
        self._note(result, chosen)
        return result

    def _note(self, result: ToolResult, agent_id: str) -> None:
        about = result.details.get("artifact")
        handle = about.get("handle") if is_object(about) else None
        if isinstance(handle, str):
            self.stay.keep(handle, agent_id)

    def _choose(self, call: Call) -> str:
        self.tools()
        tool = self._originals.get(call.name)
        able = [] if tool is None else sorted(self._fleet.with_tool(tool), key=load)
        names = [member.agent_id for member in able]
        if not names:
            text = f"Error: No agent that has {call.name!r} is online. Explain to the user."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
        before = self.stay.chosen.get(call.name)
        return before if before in names else names[0]
