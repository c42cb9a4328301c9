"""One edge, as far as the orchestrator knows it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.transport.wire import Heartbeat

BOOTS = 16
"""Boot ids of an edge that are remembered, so that an older one's word changes nothing."""
DOUBT = 2
"""Words of an older boot that are not believed while the newer one is silent."""
LOADS = 30
"""Heartbeats of an edge whose loads are remembered."""
_MOST = 1e15
"""The largest figure of a heartbeat that is believed."""


class Member:
    """One edge, as far as it is known."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.online = False
        self.boot_id, self.counter = "", 0
        self.seen = 0.0
        """When it last gave a sign of life, by the steady clock."""
        self.last_seen = 0.0
        """The same in Unix seconds, for people."""
        self.revision = 0
        """That of the fleet when something about it changed last, if only a heartbeat."""
        self.loads: deque[int] = deque(maxlen=LOADS)
        """What it had to do at its last heartbeats, the oldest first."""
        self.summary, self.agent_type = "", ""
        self.has_model = False
        self.hashes: dict[str, str] = {}
        """Its tools by name, as advertised."""
        self.tools: Toolset = Toolset()
        """Its tools with their schemas, once fetched, as far as they may be used."""
        self.offered: Toolset | None = None
        """All of them, if they are sound."""
        self.advertised = False
        self.fetched: dict[str, str] = {}
        """The advert that the tools were fetched on."""
        self.heartbeat: Heartbeat | None = None
        self.problem = ""
        """Why its tools are not offered, if they are not."""
        self.every: float = 0.0
        """Seconds between two heartbeats, as it says itself; 0 if it does not."""
        self.journal = ""
        """What it remembers by."""
        self.greeted: tuple[str, int] | None = None
        """The boot and connection that said hello last."""
        self.gone: tuple[str, int] | None = None
        """The boot and connection whose will was read last: it never comes back."""
        self._boots: list[str] = []
        self._doubted = 0

    def beat(self, heartbeat: Heartbeat) -> None:
        """Note a heartbeat; what no device can have is not believed."""
        self.heartbeat = beat = _sound(heartbeat)
        self.loads.append(beat.in_flight + beat.queued)

    def newer(self, boot_id: str, counter: int) -> bool:
        """Whether a live word from this boot and connection is at least as new as what is known.

        Which of two boots is the older one only their order tells. A word that was long on its way
        may turn it round, so a boot that goes on speaking is believed in the end.
        """
        if self.gone is not None and boot_id == self.gone[0] and counter <= self.gone[1]:
            return False  # said before its will, and overtaken by that on the way
        if boot_id == self.boot_id:
            return counter >= self.counter
        if boot_id not in self._boots:
            return True
        self._doubted += 1
        return self._doubted > DOUBT

    def take(self, boot_id: str, counter: int) -> None:
        """Note the boot and connection that speaks."""
        if boot_id != self.boot_id:
            others = [one for one in self._boots if one != boot_id]
            self._boots = [*others, boot_id][-BOOTS:]
        self._doubted = 0
        self.boot_id, self.counter = boot_id, counter

    @property
    def outdated(self) -> bool:
        """Whether it advertises tools whose schemas are not known."""
        return self.hashes != self.fetched

    @property
    def is_known(self) -> bool:
        """Whether it has said what it can do, and that was understood."""
        return self.advertised and not self.outdated


def load(member: Member) -> tuple[int, str]:
    """How busy an edge is; equals in a fixed order."""
    beat = member.heartbeat
    return (beat.in_flight + beat.queued if beat else 0, member.agent_id)


def _sound(beat: Heartbeat) -> Heartbeat:
    room = None if beat.room is None else round(_figure(beat.room))
    return replace(
        beat,
        in_flight=round(_figure(beat.in_flight)),
        queued=round(_figure(beat.queued)),
        room=room,
        cpu_percent=_figure(beat.cpu_percent),
        memory_mb=_figure(beat.memory_mb),
        uptime_s=_figure(beat.uptime_s),
    )


def _figure(said: float) -> float:
    return min(max(said, 0), _MOST) if math.isfinite(said) else 0.0


def names(members: Sequence[Member]) -> list[str]:
    """The ids of some edges."""
    return [member.agent_id for member in members]


def find_tool(member: Member, name: str) -> Tool | None:
    """A tool of an edge."""
    found = member.tools.find(name)
    return None if found is None else found[0]
