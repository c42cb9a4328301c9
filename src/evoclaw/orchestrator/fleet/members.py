"""What the orchestrator knows of one edge."""

from __future__ import annotations

import math
from collections import deque

from msgspec.structs import replace

from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.transport.wire import Heartbeat

DEVICE_TOOL = "device"
"""The tool of an edge that reads its sensors."""
MAX_REMEMBERED_BOOTS = 16
"""Boot ids of an edge, so that messages of an older boot are ignored."""
MAX_IGNORED_OLD_BOOT_SIGNS = 2
"""Messages of an older boot that are ignored while the newer boot is silent."""
MAX_LOAD_SAMPLES = 30
"""The number of heartbeats whose load is remembered."""
_MAX_NUMBER = 1e15
"""The upper bound of a number in a heartbeat."""


class Member:
    """One edge."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.online = False
        self.boot_id, self.counter = "", 0
        self.seen_at = 0.0
        """The last sign of life, by the steady clock."""
        self.silence_check_at = 0.0
        """When the fleet checks next whether it is silent, by the steady clock."""
        self.last_seen = 0.0
        """The last sign of life in Unix seconds, for people."""
        self.revision = 0
        """The fleet's revision at its last change or heartbeat."""
        self.loads: deque[int] = deque(maxlen=MAX_LOAD_SAMPLES)
        """Its load at its last heartbeats, the oldest first."""
        self.summary, self.agent_type = "", ""
        self.has_model = False
        self.genome = ""
        """The digest of its genome; empty if it did not say."""
        self.advertised_hashes: dict[str, str] = {}
        """The hashes of its tools by name, as advertised."""
        self.tools: Toolset = Toolset()
        """The fetched tools that may be used."""
        self.offered: Toolset | None = None
        """All fetched tools; None if they are invalid or not fetched."""
        self.advertised = False
        self.fetched_hashes: dict[str, str] = {}
        """The advertised hashes for which the tools were fetched."""
        self.heartbeat: Heartbeat | None = None
        self.problem = ""
        """Why some of its tools are not offered; empty if all are."""
        self.heartbeat_interval_s: float = 0.0
        """As the edge announced it; 0 if it did not."""
        self.journal_id = ""
        """The id of its journal, which changes if the journal is lost."""
        self.damage = ""
        """What of its own data was damaged, as it says; empty if nothing is."""
        self.last_hello: tuple[str, int] | None = None
        """The boot and connection of its last hello."""
        self.last_will: tuple[str, int] | None = None
        """The boot and connection of its last will, which is over."""
        self._boots: list[str] = []
        self._ignored_signs = 0

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Store a heartbeat, with its numbers bounded."""
        self.heartbeat = beat = _sanitized(heartbeat)
        self.loads.append(beat.in_flight + beat.queued)

    def is_current(self, boot_id: str, counter: int) -> bool:
        """Whether a message of this boot and connection is at least as new as the last one.

        Which of two boots is older is known only from the order of their messages. A delayed
        message may reverse it, so a boot that continues to send messages is accepted in the end.
        An edge that speaks only the basic messages has no boot: it counts unless one that has is
        online.
        """
        if not boot_id:
            return not self.boot_id or not self.online
        if (
            self.last_will is not None
            and boot_id == self.last_will[0]
            and counter <= self.last_will[1]
        ):
            return False  # sent before its will, but delivered after it
        if boot_id == self.boot_id:
            return counter >= self.counter
        if boot_id not in self._boots:
            return True
        self._ignored_signs += 1
        return self._ignored_signs > MAX_IGNORED_OLD_BOOT_SIGNS

    def set_boot(self, boot_id: str, counter: int) -> None:
        """Set the current boot and connection."""
        if boot_id != self.boot_id:
            others = [boot for boot in self._boots if boot != boot_id]
            self._boots = [*others, boot_id][-MAX_REMEMBERED_BOOTS:]
        self._ignored_signs = 0
        self.boot_id, self.counter = boot_id, counter

    @property
    def guarantees_delivery(self) -> bool:
        """Whether it says hello, resends results and recognizes repeated commands.

        Other edges speak only the basic messages: advert, heartbeat, command, report.
        """
        return bool(self.boot_id)

    @property
    def outdated(self) -> bool:
        """Whether it advertises tools whose schemas are unknown."""
        return self.advertised_hashes != self.fetched_hashes

    @property
    def is_known(self) -> bool:
        """Whether its advert arrived, and its tools were fetched."""
        return self.advertised and not self.outdated


def load(member: Member) -> tuple[int, str]:
    """A sort key: the load of an edge, then its id."""
    beat = member.heartbeat
    return (beat.in_flight + beat.queued if beat else 0, member.agent_id)


def _sanitized(beat: Heartbeat) -> Heartbeat:
    room = None if beat.room is None else round(_bounded(beat.room))
    return replace(
        beat,
        in_flight=round(_bounded(beat.in_flight)),
        queued=round(_bounded(beat.queued)),
        room=room,
        cpu_percent=_bounded(beat.cpu_percent),
        memory_mb=_bounded(beat.memory_mb),
        uptime_s=_bounded(beat.uptime_s),
    )


def _bounded(value: float) -> float:
    return min(max(value, 0), _MAX_NUMBER) if math.isfinite(value) else 0.0


def find_tool(member: Member, name: str) -> Tool | None:
    """A tool of an edge."""
    found = member.tools.find(name)
    return None if found is None else found[0]


def selects(selector: str, member: Member) -> bool:
    """Whether `edge_call` means an edge by a selector: its name, `type:NAME`, or `*` for all."""
    kind = selector.removeprefix("type:") if selector.startswith("type:") else None
    return selector in ("*", member.agent_id) or (kind == member.agent_type and bool(kind))
