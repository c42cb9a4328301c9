"""Who is there and what they say they can do: presence, adverts, and the tools of every edge.

A retained message alone never means that somebody is there: it may be old. A live sign does: a
birth as it happens, a hello, a heartbeat.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.cleaning import one_line, plain
from evoclaw.orchestrator.fleet.members import Member, find_tool, load
from evoclaw.transport.clocks import steady
from evoclaw.transport.wire import Advert, Heartbeat, Status

MISSED = 3
"""Heartbeats without which an edge counts as gone."""
MOST_TOOLS = 200
"""Tools of one edge; what it offers beyond is left out."""
LONGEST = 3600.0
"""Seconds that a tool of an edge may take, whatever it says."""
SELDOM = 3600.0
"""Seconds between two heartbeats of an edge at most, whatever it says."""

Judged: TypeAlias = tuple[Sequence[Tool], str]
"""The tools of an edge that may be used, and what to tell of the others."""
Permit: TypeAlias = Callable[[str, Sequence[Tool]], Awaitable[Judged]]


async def permit_all(agent_id: str, tools: Sequence[Tool]) -> Judged:
    """Let all tools of an edge be used."""
    return tools, ""


class Presence(Struct, frozen=True):
    """What changed."""

    agent_id: str
    online: bool


class Fleet:
    """The edges, and what is known of them."""

    def __init__(
        self,
        *,
        heartbeat: float = 30.0,
        clock: Callable[[], float] = steady,
        wall: Callable[[], float] = time.time,
        changed: Callable[[Presence], None] = lambda _: None,
        permit: Permit = permit_all,
    ) -> None:
        """Know nobody yet.

        Args:
            heartbeat: Seconds between two of an edge, unless it says that there are more.
            clock: By which silence is measured.
            wall: What time it is, for people.
            changed: Told who came and who went.
            permit: Says which of an edge's tools may be used, and what to tell of the others.
        """
        self._heartbeat = heartbeat
        self._clock, self._wall = clock, wall
        self._changed, self._permit = changed, permit
        self._members: dict[str, Member] = {}
        self._by_name: list[Member] = []
        """The same, in order, as it was when it was asked for last; nobody is ever left out."""
        self.version = 0
        """Raised by every change that a tool list may show."""
        self.revision = 0
        """Raised by every change and every heartbeat; each edge has that of its own last one."""
        self._next_change: asyncio.Future[None] | None = None

    def member(self, agent_id: str) -> Member:
        """One edge; made known if it was not."""
        found = self._members.get(agent_id)
        if found is None:
            found = self._members[agent_id] = Member(agent_id)
            self._mark(found)
        return found

    def find(self, agent_id: str) -> Member | None:
        """One edge, if it is known."""
        return self._members.get(agent_id)

    @property
    def size(self) -> int:
        """How many were ever heard of."""
        return len(self._members)

    def members(self) -> list[Member]:
        """All that were ever heard of, by name."""
        if len(self._by_name) != len(self._members):
            self._by_name = [self._members[name] for name in sorted(self._members)]
        return list(self._by_name)

    def online(self) -> list[Member]:
        """Those that are there, by name."""
        return [member for member in self.members() if member.online]

    def changed_since(self, revision: int) -> list[Member]:
        """Those of whom something changed, if only a heartbeat came."""
        if revision == self.revision:
            return []
        return [one for one in self._members.values() if one.revision > revision]

    def is_online(self, agent_id: str) -> bool:
        """Whether an edge is there."""
        member = self._members.get(agent_id)
        return member is not None and member.online

    def with_tool(self, tool: Tool) -> list[Member]:
        """The edges that are there and have this very tool, least loaded first."""
        able = [member for member in self.online() if find_tool(member, tool.name) == tool]
        return sorted(able, key=load)

    def status(self, status: Status, *, retained: bool) -> bool:
        """A birth or a will; False if it is older than what is known, and changes nothing."""
        if status.status == "online":
            # A kept one may have been said long ago; a hello will tell.
            return retained or self.alive(status.agent_id, status.boot_id, status.counter)
        member = self.member(status.agent_id)
        if member.boot_id and member.boot_id != status.boot_id:
            return False  # that another process has gone says nothing about this one
        if status.counter < member.counter:
            return False
        member.take(status.boot_id, status.counter)
        member.gone = status.boot_id, status.counter
        self._set(member, online=False)
        return True

    def alive(self, agent_id: str, boot_id: str, counter: int) -> bool:
        """A live sign of an edge; False if it comes from an older boot or connection."""
        member = self.member(agent_id)
        if not member.newer(boot_id, counter):
            return False
        member.take(boot_id, counter)
        self._set(member, online=True)
        return True

    def beat(self, agent_id: str, heartbeat: Heartbeat) -> bool:
        """A heartbeat."""
        if not self.alive(agent_id, heartbeat.boot_id, heartbeat.counter):
            return False
        member = self.member(agent_id)
        member.beat(heartbeat)
        self._mark(member)
        return True

    def beats(self, agent_id: str, every: float | None) -> None:
        """How often an edge means to give a sign of life."""
        said = every if every is not None and math.isfinite(every) else 0.0
        self.member(agent_id).every = min(max(said, 0.0), SELDOM)

    def advert(self, advert: Advert) -> None:
        """What an edge says of itself."""
        member = self.member(advert.agent_id)
        member.summary = one_line(advert.capabilities)
        member.agent_type = one_line(advert.agent_type, 64)
        member.has_model = advert.llm
        member.advertised = True
        member.hashes = {tool.name: tool.hash for tool in advert.tools[:MOST_TOOLS]}
        self._note(member)

    def outdated(self, agent_id: str) -> bool:
        """Whether an edge advertises tools whose schemas are not known."""
        return self.member(agent_id).outdated

    async def tools(
        self, agent_id: str, tools: Sequence[Tool], advertised: Mapping[str, str]
    ) -> None:
        """The schemas of an edge's tools; an unsound one keeps all of them from being offered.

        `advertised` is the advert they were asked for on.
        """
        member = self.member(agent_id)
        try:
            known = Toolset(tools[:MOST_TOOLS])
            judged = await self._permit(agent_id, known)
        except (SchemaError, DuplicateTool) as problem:
            self.quarantine(agent_id, str(problem), advertised)
            return
        member.fetched, member.offered = dict(advertised), known
        self._offer(member, judged)

    def judge_again(self, agent_id: str, permit: Callable[[str, Sequence[Tool]], Judged]) -> None:
        """Offer of an edge's tools, as they are known, what may be used by now."""
        member = self._members.get(agent_id)
        if member is not None and member.offered is not None:
            self._offer(member, permit(agent_id, member.offered))

    def ask_again(self, agent_id: str) -> None:
        """Have an edge's tools fetched anew at its next sign of life."""
        member = self._members.get(agent_id)
        if member is not None:
            member.fetched = {}

    def _offer(self, member: Member, judged: Judged) -> None:
        permitted, member.problem = judged
        member.tools = Toolset([_sound(tool) for tool in permitted], like=member.offered or ())
        self._note(member)

    def quarantine(self, agent_id: str, problem: str, advertised: Mapping[str, str]) -> None:
        """Offer none of an edge's tools, and say why."""
        member = self.member(agent_id)
        member.fetched, member.tools, member.offered = dict(advertised), Toolset(), None
        member.problem = one_line(problem)
        self._note(member)

    def sweep(self) -> None:
        """Take for gone who gave no sign of life for too long."""
        now = self._clock()
        for member in self.online():
            if member.seen < now - MISSED * max(self._heartbeat, member.every):
                self._set(member, online=False)

    async def change(self) -> None:
        """Wait until anything changes."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_change)

    def _mark(self, member: Member) -> None:
        self.revision += 1
        member.revision = self.revision

    def _note(self, member: Member) -> None:
        self.version += 1
        self._mark(member)
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    def _set(self, member: Member, *, online: bool) -> None:
        if online:
            member.seen, member.last_seen = self._clock(), round(self._wall(), 3)
        if member.online is not online:
            member.online = online
            self._note(member)
            self._changed(Presence(member.agent_id, online))


def _sound(tool: Tool) -> Tool:
    """A tool as it may be offered: its words cleaned, its times within reason."""
    longest = min(max(tool.max_timeout, 0.001), LONGEST)
    sound = replace(
        tool,
        description=plain(tool.description),
        timeout=min(max(tool.timeout, 0.001), longest),
        max_timeout=longest,
        slack=0.0,
    )
    # The very same if it can be: what it is known by is made of how it was written.
    return tool if sound == tool else sound
