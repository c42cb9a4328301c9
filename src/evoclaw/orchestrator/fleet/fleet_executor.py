"""The tools of all edges as one executor: a call goes to an edge that has its tool."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock, ToolResult, is_object
from evoclaw.core.ports import Delay, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import ran_elsewhere
from evoclaw.executors.edge import EdgeExecutor
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import Member, find_tool

HOME_TIMEOUT_S = 30.0
"""Seconds that a call waits for an edge whose tools are not known yet."""
MAX_REMEMBERED_HANDLES = 1_000
"""Outputs whose edge is remembered."""
MAX_REMEMBERED_SESSIONS = 10_000
"""Sessions whose choice of edges is remembered."""


@dataclass(eq=False, slots=True)
class EdgeAffinity:
    """Session affinity: the edges that a session used, for its next run."""

    home: str = ""
    """The edge of its first call; another once that one is offline."""
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
    """Runs calls on the home edge of a session, and elsewhere only what that edge cannot run.

    With a `home`, a call runs there, also if it must wait until that edge is online again; only a
    tool that the home edge lacks runs on another edge. Without, the first call chooses the least
    loaded edge, and the session stays there while it can. A result from elsewhere says so.
    """

    def __init__(
        self,
        fleet: Fleet,
        edge: Callable[[str], EdgeExecutor],
        edge_of_request: Callable[[str], Awaitable[str | None]],
        *,
        excluded: Collection[str] = (),
        affinity: EdgeAffinity | None = None,
        home: str = "",
    ) -> None:
        """Make an executor for one run.

        Args:
            fleet: The edges.
            edge: Gives the executor of one edge.
            edge_of_request: The edge that a request was sent to before, if it was.
            excluded: Names of tools that are not offered, as other tools have them.
            affinity: The edges of the session, which its runs share.
            home: The edge that the session works on; empty if it was not chosen.
        """
        self._fleet, self._edge, self._edge_of_request = fleet, edge, edge_of_request
        self._excluded, self._home = frozenset(excluded), home
        self._version = -1
        self._tools: Toolset = Toolset()
        self._originals: dict[str, Tool] = {}
        self.affinity = affinity or EdgeAffinity()

    def tools(self) -> Sequence[Tool]:
        """The tools of the home edge, also while it is offline, then of the other online edges."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            offered: dict[str, Tool] = {}
            self._originals = {}
            home = self._fleet.find(self._home)
            others = self._fleet.online_offering(excluded=self._home)
            for member in (*([] if home is None else [home]), *others):
                for tool in self._edge(member.agent_id).tools():
                    if tool.name not in self._excluded and tool.name not in offered:
                        offered[tool.name] = tool
                        original = find_tool(member, tool.name)
                        self._originals[tool.name] = tool if original is None else original
            self._tools = Toolset(offered.values(), like=self._tools)
        return self._tools

    async def machine_of(self, call: Call) -> str:
        """The edge that the call was or will be sent to; empty if no edge can run it."""
        sent = await self._edge_of_request(call.request_id) if call.resumed else None
        if found := sent or self._holder(call):
            return found
        chosen = self._choose(call)
        # Kept before it is used: while a person is asked, the loads of the edges change.
        self.affinity.home = self.affinity.home or chosen
        return chosen

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Send the call to its edge."""
        chosen = call.machine or await self.machine_of(call)
        if not chosen:
            text = f"Error: No agent that has {call.name!r} is online. Explain to the user."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
        if chosen == self._home:
            await self._wait_for_home(call, progress)
        note = ""
        if self._holder(call) is None:
            note = self._note(call.name, chosen)
            self.affinity.edge_by_tool[call.name] = chosen
            if not self._fleet.is_online(self.affinity.home):
                self.affinity.home = chosen
        result = await self._edge(chosen).execute(call, progress)
        self._remember_output(result, chosen)
        return replace(result, blocks=(*result.blocks, TextBlock(note))) if note else result

    def _holder(self, call: Call) -> str | None:
        """The edge that stores the output which the call asks for."""
        handle = call.arguments.get("handle")
        return self.affinity.edge_by_handle.get(handle) if isinstance(handle, str) else None

    def _note(self, tool: str, chosen: str) -> str:
        """Why a call does not run where the session works; empty if it does."""
        home = self._home or self.affinity.home
        if not home or chosen == home:
            return ""
        lacks = self._home or self._fleet.is_online(home)
        return ran_elsewhere(chosen, home, f"has no tool {tool!r}" if lacks else "is offline")

    def _remember_output(self, result: ToolResult, agent_id: str) -> None:
        artifact = result.details.get("artifact")
        handle = artifact.get("handle") if is_object(artifact) else None
        if isinstance(handle, str):
            self.affinity.remember_output(handle, agent_id)

    def _choose(self, call: Call) -> str:
        if self._home and not self._home_lacks(call.name):
            return self._home
        self.tools()
        tool = self._originals.get(call.name)
        if tool is None:
            return ""
        before = (self.affinity.edge_by_tool.get(call.name, ""), self.affinity.home)
        return self._fleet.choose_edge(tool, before)

    def _home_lacks(self, tool: str) -> bool:
        """Whether the home edge is known to lack a tool; False for an edge not seen yet."""
        home = self._fleet.find(self._home)
        if home is None or home.offered is None or not home.is_known:
            return False
        # A tool that is not approved yet is not lacking: it must not run elsewhere instead.
        return tool not in home.advertised_hashes and home.offered.find(tool) is None

    async def _wait_for_home(self, call: Call, progress: Progress) -> None:
        """Wait a little until the tools of the home edge are known, and this one may be used."""
        home = self._fleet.member(self._home)
        if find_tool(home, call.name) is not None:
            return
        if not home.online:
            progress(Delay(self._home, HOME_TIMEOUT_S))
        with suppress(TimeoutError):
            async with asyncio.timeout(HOME_TIMEOUT_S):
                while not (home.online and home.is_known):
                    await self._fleet.wait_for_change()
        if find_tool(home, call.name) is None:
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, _not_usable(home, call.name))


def _not_usable(home: Member, tool: str) -> str:
    why = f"does not offer it: {home.problem}" if home.problem else "is not online"
    return f"Error: {tool!r} was not run: {home.agent_id} {why}. Explain to the user."
