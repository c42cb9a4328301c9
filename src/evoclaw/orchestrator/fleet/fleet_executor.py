"""The tools of all edges as one executor: a call goes to an edge that has its tool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult, is_object
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.executors.edge import EdgeExecutor
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import find_tool, load

MAX_REMEMBERED_HANDLES = 1_000
"""Outputs whose edge is remembered."""
MAX_REMEMBERED_SESSIONS = 10_000
"""Sessions whose choice of edges is remembered."""


@dataclass(eq=False, slots=True)
class EdgeAffinity:
    """Session affinity: the edges that a session used, for its next run."""

    edge_by_tool: dict[str, str] = field(default_factory=dict[str, str])
    """The edge of each tool, by its name."""
    edge_by_handle: dict[str, str] = field(default_factory=dict[str, str])
    """The edge that stores each large output, by its handle."""

    def remember_output(self, handle: str, agent_id: str) -> None:
        """Remember the edge of an output; the oldest outputs are forgotten."""
        self.edge_by_handle[handle] = agent_id
        while len(self.edge_by_handle) > MAX_REMEMBERED_HANDLES:
            del self.edge_by_handle[next(iter(self.edge_by_handle))]


class EdgeAffinities:
    """The affinity of each session; the least recently used sessions are forgotten."""

    def __init__(self) -> None:
        self._by_session: OrderedDict[str, EdgeAffinity] = OrderedDict()

    def of(self, session: str) -> EdgeAffinity:
        """The affinity of a session."""
        affinity = self._by_session.setdefault(session, EdgeAffinity())
        self._by_session.move_to_end(session)
        while len(self._by_session) > MAX_REMEMBERED_SESSIONS:
            self._by_session.popitem(last=False)
        return affinity


class FleetExecutor:
    """Runs calls on the least loaded edge that has the tool, on the same edge within a session."""

    def __init__(
        self,
        fleet: Fleet,
        edge: Callable[[str], EdgeExecutor],
        edge_of_request: Callable[[str], Awaitable[str | None]],
        *,
        excluded: Collection[str] = (),
        affinity: EdgeAffinity | None = None,
    ) -> None:
        """Make an executor for one run.

        Args:
            fleet: The edges.
            edge: Gives the executor of one edge.
            edge_of_request: The edge that a request was sent to before, if it was.
            excluded: Names of tools that are not offered, as other tools have them.
            affinity: The edges of the session, which its runs share.
        """
        self._fleet, self._edge, self._edge_of_request = fleet, edge, edge_of_request
        self._excluded = frozenset(excluded)
        self._version = -1
        self._tools: Toolset = Toolset()
        self._originals: dict[str, Tool] = {}
        self.affinity = affinity or EdgeAffinity()

    def tools(self) -> Sequence[Tool]:
        """The tools of all online edges; of two with the same name, that of the first edge."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            offered: dict[str, Tool] = {}
            self._originals = {}
            for member in self._fleet.online():
                for tool in self._edge(member.agent_id).tools():
                    if tool.name not in self._excluded and tool.name not in offered:
                        offered[tool.name] = tool
                        original = find_tool(member, tool.name)
                        self._originals[tool.name] = tool if original is None else original
            self._tools = Toolset(offered.values(), like=self._tools)
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Send the call to an online edge that has its tool."""
        handle = call.arguments.get("handle")
        holder = self.affinity.edge_by_handle.get(handle) if isinstance(handle, str) else None
        chosen = await self._edge_of_request(call.request_id) or holder or self._choose(call)
        if holder is None:
            self.affinity.edge_by_tool[call.name] = chosen
        result = await self._edge(chosen).execute(call, progress)
        self._remember_output(result, chosen)
        return result

    def _remember_output(self, result: ToolResult, agent_id: str) -> None:
        artifact = result.details.get("artifact")
        handle = artifact.get("handle") if is_object(artifact) else None
        if isinstance(handle, str):
            self.affinity.remember_output(handle, agent_id)

    def _choose(self, call: Call) -> str:
        self.tools()
        tool = self._originals.get(call.name)
        able = [] if tool is None else sorted(self._fleet.with_tool(tool), key=load)
        names = [member.agent_id for member in able]
        if not names:
            text = f"Error: No agent that has {call.name!r} is online. Explain to the user."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
        before = self.affinity.edge_by_tool.get(call.name)
        return before if before in names else names[0]
