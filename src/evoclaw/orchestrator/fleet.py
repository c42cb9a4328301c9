"""Who is there and what they say they can do: presence, adverts, and the tools of every edge.

A retained message alone never means that somebody is there: it may be old. A live sign does: a
birth as it happens, a hello, a heartbeat, an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.cleaning import one_line
from evoclaw.transport.wire import Advert, Heartbeat, Status

MISSED = 3
"""Heartbeats without which an edge counts as gone."""
BOOTS = 16
"""Boot ids of an edge that are remembered, so that an older one's word changes nothing."""
MOST_TOOLS = 200
"""Tools of one edge; what it offers beyond is left out."""


Permit: TypeAlias = Callable[[str, Sequence[Tool]], tuple[Sequence[Tool], str]]


class Member:
    """One edge, as far as it is known."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.online = False
        self.boot_id, self.counter = "", 0
        self.seen = 0.0
        """When it last gave a sign of life, by the steady clock."""
        self.summary, self.agent_type = "", ""
        self.has_model = False
        self.hashes: dict[str, str] = {}
        """Its tools by name, as advertised."""
        self.tools: Toolset = Toolset()
        """Its tools with their schemas, once fetched."""
        self.fetched = ""
        """Which advert the tools belong to."""
        self.heartbeat: Heartbeat | None = None
        self.problem = ""
        """Why its tools are not offered, if they are not."""
        self._boots: list[str] = []

    def newer(self, boot_id: str, counter: int) -> bool:
        """Whether a word from this boot and connection is at least as new as what is known."""
        if boot_id == self.boot_id:
            return counter >= self.counter
        return boot_id not in self._boots

    def take(self, boot_id: str, counter: int) -> None:
        """Note the boot and connection that speaks."""
        if boot_id != self.boot_id:
            self._boots = [*self._boots, boot_id][-BOOTS:]
        self.boot_id, self.counter = boot_id, counter


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
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[Presence], None] = lambda _: None,
        permit: Permit = lambda agent_id, tools: (tools, ""),
    ) -> None:
        """`permit` says which of an edge's tools may be used, and what to tell of the others."""
        self._silence = MISSED * heartbeat
        self._clock = clock
        self._changed, self._permit = changed, permit
        self._members: dict[str, Member] = {}
        self.version = 0
        """Raised by every change that a tool list may show."""
        self._next_change: asyncio.Future[None] | None = None

    def member(self, agent_id: str) -> Member:
        """One edge; made known if it was not."""
        return self._members.setdefault(agent_id, Member(agent_id))

    def find(self, agent_id: str) -> Member | None:
        """One edge, if it is known."""
        return self._members.get(agent_id)

    def members(self) -> list[Member]:
        """All that were ever heard of, by name."""
        return [self._members[name] for name in sorted(self._members)]

    def online(self) -> list[Member]:
        """Those that are there, by name."""
        return [member for member in self.members() if member.online]

    def is_online(self, agent_id: str) -> bool:
        """Whether an edge is there."""
        member = self._members.get(agent_id)
        return member is not None and member.online

    def with_tool(self, name: str) -> list[Member]:
        """The edges that are there and have a tool, least loaded first."""
        able = [member for member in self.online() if member.tools.find(name) is not None]
        return sorted(able, key=load)

    def status(self, status: Status, *, retained: bool) -> bool:
        """A birth or a will; False if it is older than what is known, and changes nothing."""
        member = self.member(status.agent_id)
        if not member.newer(status.boot_id, status.counter):
            return False
        if status.status == "online" and retained:
            return True  # it may have been said long ago; a hello will tell
        member.take(status.boot_id, status.counter)
        self._set(member, online=status.status == "online")
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
        self.member(agent_id).heartbeat = heartbeat
        return True

    def advert(self, advert: Advert) -> bool:
        """What an edge says of itself; whether its tools must be fetched anew."""
        member = self.member(advert.agent_id)
        member.summary = one_line(advert.capabilities)
        member.agent_type = one_line(advert.agent_type)[:64]
        member.has_model = advert.llm
        member.hashes = {tool.name: tool.hash for tool in advert.tools[:MOST_TOOLS]}
        self._note()
        return self.outdated(advert.agent_id)

    def outdated(self, agent_id: str) -> bool:
        """Whether an edge advertises tools whose schemas are not known."""
        member = self.member(agent_id)
        return bool(member.hashes) and member.fetched != fingerprint(member)

    def tools(self, agent_id: str, tools: Iterable[Tool]) -> None:
        """The schemas of an edge's tools; an unsound one keeps all of them from being offered."""
        member = self.member(agent_id)
        member.fetched, member.problem = fingerprint(member), ""
        try:
            known = Toolset(tuple(tools)[:MOST_TOOLS])
        except (SchemaError, DuplicateTool) as problem:
            member.tools, member.problem = Toolset(), one_line(str(problem))
        else:
            permitted, member.problem = self._permit(agent_id, known)
            member.tools = Toolset(permitted)
        self._note()

    def sweep(self) -> None:
        """Take for gone who gave no sign of life for too long."""
        limit = self._clock() - self._silence
        for member in self.online():
            if member.seen < limit:
                self._set(member, online=False)

    async def change(self) -> None:
        """Wait until anything changes."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_change)

    def _note(self) -> None:
        self.version += 1
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    def _set(self, member: Member, *, online: bool) -> None:
        if online:
            member.seen = self._clock()
        if member.online is not online:
            member.online = online
            self._note()
            self._changed(Presence(member.agent_id, online))


def load(member: Member) -> tuple[int, str]:
    """How busy an edge is; equals in a fixed order."""
    beat = member.heartbeat
    return (beat.in_flight + beat.queued if beat else 0, member.agent_id)


def fingerprint(member: Member) -> str:
    """What changes when an edge's tools do."""
    return ",".join(f"{name}:{member.hashes[name]}" for name in sorted(member.hashes))


def names(members: Sequence[Member]) -> list[str]:
    """The ids of some edges."""
    return [member.agent_id for member in members]
