"""The known edges: their presence, their adverts, and their tools.

A retained message never means that an edge is online: it may be old. A live sign does: a birth
message that is not retained, a hello, a heartbeat.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right, insort
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.fleet.tool_index import ToolIndex, ToolsByName
from evoclaw.orchestrator.sanitizing import one_line, plain_text
from evoclaw.transport.clocks import monotonic_clock
from evoclaw.transport.wire import Advert, Heartbeat, Status

MAX_MISSED_HEARTBEATS = 3
"""After which an edge is offline."""
MAX_TOOLS_PER_EDGE = 200
"""Further tools of the edge are not offered."""
MAX_DIGEST_CHARS = 64
"""Of the digest of a genome."""
MAX_TOOL_TIMEOUT_S = 3600.0
"""The upper bound of an edge's tool timeouts."""
MAX_HEARTBEAT_INTERVAL_S = 3600.0
"""The upper bound of an edge's heartbeat interval."""

UsableTools: TypeAlias = tuple[Sequence[Tool], str]
"""The tools of an edge that may be used, and why the others may not."""
Permit: TypeAlias = Callable[[str, Sequence[Tool]], Awaitable[UsableTools]]


async def permit_all(agent_id: str, tools: Sequence[Tool]) -> UsableTools:
    """Permit all tools of an edge."""
    return tools, ""


class PresenceChange(Struct, frozen=True):
    """An edge went online or offline."""

    agent_id: str
    online: bool


class Fleet:
    """All known edges."""

    def __init__(
        self,
        *,
        heartbeat_s: float = 30.0,
        clock: Callable[[], float] = monotonic_clock,
        wall_clock: Callable[[], float] = time.time,
        on_presence_change: Callable[[PresenceChange], None] = lambda _: None,
        permit: Permit = permit_all,
    ) -> None:
        """Start without edges.

        Args:
            heartbeat_s: Between two heartbeats, unless an edge announces a longer interval.
            clock: The steady clock that measures silence.
            wall_clock: Unix seconds, for people.
            on_presence_change: Called when an edge goes online or offline.
            permit: Decides which tools of an edge may be used, and why the others may not.
        """
        self._heartbeat_s = heartbeat_s
        self._clock, self._wall_clock = clock, wall_clock
        self._on_presence_change, self._permit = on_presence_change, permit
        self._members: dict[str, Member] = {}
        self._by_name: list[Member] = []
        """The members sorted by name; members are never removed."""
        self._silence_checks: list[tuple[float, str]] = []
        """A heap: when an online edge is silent unless it is heard before, and the edge. A later
        sign of life moves its entry only when it is due."""
        self._tool_index = ToolIndex()
        self._tools_by_name = ToolsByName()
        self.version = 0
        """Incremented by every change that affects the offered tools."""
        self.revision = 0
        """Incremented by every change and heartbeat; each member has that of its last one."""
        self._next_change: asyncio.Future[None] | None = None

    def member(self, agent_id: str) -> Member:
        """The edge with an id; added if it is unknown."""
        found = self._members.get(agent_id)
        if found is None:
            found = self._members[agent_id] = Member(agent_id)
            insort(self._by_name, found, key=_name)
            self._bump_revision(found)
        return found

    def find(self, agent_id: str) -> Member | None:
        """The edge with an id, if it is known."""
        return self._members.get(agent_id)

    @property
    def size(self) -> int:
        """The number of known edges."""
        return len(self._members)

    def members(self) -> list[Member]:
        """All known edges, by name."""
        return list(self._by_name)

    def page(self, after: str, limit: int) -> list[Member]:
        """At most so many known edges, by name, after a name."""
        first = bisect_right(self._by_name, after, key=_name)
        return self._by_name[first : first + limit]

    def online(self) -> list[Member]:
        """The online edges, by name."""
        return [member for member in self.members() if member.online]

    def changed_since(self, revision: int) -> list[Member]:
        """The edges that changed, or sent a heartbeat, after a revision."""
        if revision == self.revision:
            return []
        return [member for member in self._members.values() if member.revision > revision]

    def is_online(self, agent_id: str) -> bool:
        """Whether an edge is online."""
        member = self._members.get(agent_id)
        return member is not None and member.online

    def guarantees_delivery(self, agent_id: str) -> bool:
        """Whether an edge takes part in hello, resending and acknowledgement."""
        member = self._members.get(agent_id)
        return member is None or member.guarantees_delivery

    def choose_edge(self, tool: Tool, preferred: Iterable[str] = ()) -> str:
        """An online edge that has exactly this tool; empty if none has it.

        The first of the preferred edges that has it, else the least loaded one.
        """
        index = self._tool_index
        chosen = (name for name in preferred if index.has(name, tool))
        return next(chosen, "") or index.least_loaded(tool)

    def tools_named(self, name: str) -> Sequence[Tool]:
        """The different tools with a name or alias that edges have, online or not."""
        return self._tools_by_name.named(name)

    def online_offering(self, excluded: str = "") -> list[Member]:
        """The online edges, by name, that have a tool which no edge before them has."""
        return [self._members[name] for name in self._tool_index.first_edges(excluded)]

    def on_status(self, status: Status, *, retained: bool) -> bool:
        """Take in a birth message or a will; False if it is outdated, and was ignored."""
        if status.status != "offline":
            # A retained birth may be old: the edge is online once it says hello.
            return retained or self.on_life_sign(status.agent_id, status.boot_id, status.counter)
        member = self.member(status.agent_id)
        if member.boot_id and member.boot_id != status.boot_id:
            return False  # the will of another process of the same edge
        if status.counter < member.counter:
            return False
        member.set_boot(status.boot_id, status.counter)
        member.last_will = status.boot_id, status.counter
        self._set_online(member, online=False)
        return True

    def on_life_sign(self, agent_id: str, boot_id: str, counter: int) -> bool:
        """Mark an edge as online; False if the sign is from an older boot or connection."""
        member = self.member(agent_id)
        if not member.is_current(boot_id, counter):
            return False
        member.set_boot(boot_id, counter)
        self._set_online(member, online=True)
        return True

    def on_heartbeat(self, agent_id: str, heartbeat: Heartbeat) -> bool:
        """Take in a heartbeat; False if it is from an older boot or connection."""
        if not self.on_life_sign(agent_id, heartbeat.boot_id, heartbeat.counter):
            return False
        member = self.member(agent_id)
        member.on_heartbeat(heartbeat)
        self._tool_index.update_load(member)
        self._bump_revision(member)
        return True

    def set_heartbeat_interval(self, agent_id: str, interval_s: float | None) -> None:
        """Set the heartbeat interval that an edge announced."""
        interval = interval_s if interval_s is not None and math.isfinite(interval_s) else 0.0
        member = self.member(agent_id)
        member.heartbeat_interval_s = min(max(interval, 0.0), MAX_HEARTBEAT_INTERVAL_S)
        if member.online:
            self._check_silence_later(member)

    def on_advert(self, advert: Advert) -> None:
        """Take in an edge's advert."""
        member = self.member(advert.agent_id)
        member.summary = one_line(advert.capabilities)
        member.agent_type = one_line(advert.agent_type, 64)
        member.has_model, member.genome = advert.llm, one_line(advert.genome, MAX_DIGEST_CHARS)
        member.advertised = True
        member.advertised_hashes = {
            tool.name: tool.hash for tool in advert.tools[:MAX_TOOLS_PER_EDGE]
        }
        self._bump_version(member)

    def outdated(self, agent_id: str) -> bool:
        """Whether an edge advertises tools whose schemas are unknown."""
        return self.member(agent_id).outdated

    async def set_tools(
        self, agent_id: str, tools: Sequence[Tool], advertised: Mapping[str, str]
    ) -> None:
        """Set the tools of an edge; one invalid tool quarantines all of them.

        `advertised` are the hashes in the advert for which they were fetched.
        """
        member = self.member(agent_id)
        try:
            known = Toolset(tools[:MAX_TOOLS_PER_EDGE])
            judged = await self._permit(agent_id, known)
        except (SchemaError, DuplicateTool) as problem:
            self.quarantine(agent_id, str(problem), advertised)
            return
        member.fetched_hashes, member.offered = dict(advertised), known
        self._offer(member, judged)

    def reapply_permit(
        self, agent_id: str, permit: Callable[[str, Sequence[Tool]], UsableTools]
    ) -> None:
        """Apply `permit` again to the tools of an edge, without fetching them."""
        member = self._members.get(agent_id)
        if member is not None and member.offered is not None:
            self._offer(member, permit(agent_id, member.offered))

    def refetch_tools(self, agent_id: str) -> None:
        """Fetch the tools of an edge again at its next sign of life."""
        member = self._members.get(agent_id)
        if member is not None:
            member.fetched_hashes = {}

    def _offer(self, member: Member, permitted: UsableTools) -> None:
        usable, member.problem = permitted
        tools = Toolset([_sanitized(tool) for tool in usable], like=member.offered or ())
        self._set_tools(member, tools)

    def quarantine(self, agent_id: str, problem: str, advertised: Mapping[str, str]) -> None:
        """Offer none of an edge's tools, for this reason."""
        member = self.member(agent_id)
        member.fetched_hashes, member.offered = dict(advertised), None
        member.problem = one_line(problem)
        self._set_tools(member, Toolset())

    def _set_tools(self, member: Member, tools: Toolset) -> None:
        self._tools_by_name.replace(member.tools, tools)
        member.tools = tools
        self._bump_version(member)

    def mark_silent_offline(self) -> None:
        """Mark edges as offline that missed too many heartbeats."""
        now = self._clock()
        while self._silence_checks and self._silence_checks[0][0] < now:
            due, agent_id = heappop(self._silence_checks)
            member = self._members[agent_id]
            if not member.online or member.silence_check_at != due:
                continue  # there is a newer entry, or there will be one
            if self.silent_at(member) < now:
                self._set_online(member, online=False)
            else:
                self._check_silence_later(member)

    def silent_at(self, member: Member) -> float:
        """When an edge counts as offline unless it is heard before, by the steady clock."""
        interval = max(self._heartbeat_s, member.heartbeat_interval_s)
        return member.seen_at + MAX_MISSED_HEARTBEATS * interval

    def _check_silence_later(self, member: Member) -> None:
        member.silence_check_at = self.silent_at(member)
        heappush(self._silence_checks, (member.silence_check_at, member.agent_id))

    def mark_offline(self, agent_id: str) -> None:
        """Mark an edge as offline until its next sign of life."""
        member = self._members.get(agent_id)
        if member is not None:
            self._set_online(member, online=False)

    async def wait_for_change(self) -> None:
        """Wait until an edge changes."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_change)

    def _bump_revision(self, member: Member) -> None:
        self.revision += 1
        member.revision = self.revision

    def _bump_version(self, member: Member) -> None:
        self.version += 1
        self._tool_index.update(member)
        self._bump_revision(member)
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    def _set_online(self, member: Member, *, online: bool) -> None:
        if online:
            member.seen_at, member.last_seen = self._clock(), round(self._wall_clock(), 3)
        if member.online is not online:
            member.online = online
            if online:
                self._check_silence_later(member)
            self._bump_version(member)
            self._on_presence_change(PresenceChange(member.agent_id, online))


def _name(member: Member) -> str:
    return member.agent_id


def _sanitized(tool: Tool) -> Tool:
    """A tool as it is offered: its description cleaned, its timeouts bounded."""
    max_timeout = min(max(tool.max_timeout, 0.001), MAX_TOOL_TIMEOUT_S)
    sound = replace(
        tool,
        description=plain_text(tool.description),
        timeout=min(max(tool.timeout, 0.001), max_timeout),
        max_timeout=max_timeout,
        slack=0.0,
    )
    # The same object if nothing changed: the hash of a tool depends on how it was written.
    return tool if sound == tool else sound
