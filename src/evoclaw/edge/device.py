"""A device's identity, limits, dependencies and advert.

`OrchestratorClock`: the orchestrator's time, by which deadlines are set.
"""

from __future__ import annotations

import asyncio
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from evoclaw.core.ports import Executor
from evoclaw.core.tools import Tool
from evoclaw.core.version import VERSION
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import Genomes
from evoclaw.edge.model_files import FindModelFile, no_model_files
from evoclaw.edge.model_receiver import ModelReceiver
from evoclaw.edge.nested_calls import PendingNestedCalls
from evoclaw.edge.plans import GrantCheck, Planner, no_grants
from evoclaw.store.calls.artifacts import ArtifactStore
from evoclaw.store.calls.before_images import BeforeImages
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.clocks import monotonic_clock
from evoclaw.transport.link import Link
from evoclaw.transport.wire import Advert, AdvertisedTool, tool_hash

UNSIGNED_COMMANDS = frozenset({"ping", "tools_list", "get_metrics"})
"""Commands that need no grant unless the settings name keys for them: they change nothing."""


class OrchestratorClock:
    """Continues from the last time received, independent of this device's own clock."""

    def __init__(
        self, wall: Callable[[], float] = time.time, ticks: Callable[[], float] = monotonic_clock
    ) -> None:
        self._wall, self._steady = wall, ticks
        self._ahead: float | None = None
        self.loose = 0.0
        """Maximum seconds by which it is ahead of the orchestrator's clock."""
        self._known = asyncio.Event()

    def set(self, now: float, waited: float = 0.0) -> None:
        """Set the orchestrator's time, which may be as old as the round trip.

        This clock is then ahead of the orchestrator's by at most the round trip, and never
        behind: a slow link extends no deadline. A time with a long round trip is less precise
        than an earlier one with a short one, and is ignored unless the two contradict.
        """
        least = now - self._steady()
        if self._ahead is None or not least <= self._ahead <= least + waited:
            self._ahead, self.loose = least + waited, waited
        self._known.set()

    def give_up(self) -> None:
        """Use this device's own clock: no orchestrator has answered."""
        self._known.set()

    async def known(self) -> None:
        """Wait until the orchestrator's time is known: the device's own clock may be days off."""
        await self._known.wait()

    @property
    def is_set(self) -> bool:
        """Whether an orchestrator has told its time; otherwise `now` is this device's own."""
        return self._ahead is not None

    @property
    def skew(self) -> float:
        """Seconds by which this device's clock is ahead; 0 while the orchestrator's is unknown."""
        return 0.0 if self._ahead is None else self._wall() - self.now()

    def now(self) -> float:
        """Unix seconds."""
        return self._wall() if self._ahead is None else self._steady() + self._ahead


class EdgeIdentity(Struct, frozen=True):
    """The identity of a device. The boot id distinguishes this process from earlier ones."""

    agent_id: str
    agent_type: str = ""
    summary: str = ""
    """Its one-line summary."""
    client_id: str = ""
    """Its MQTT client id, if that is not the agent id."""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))


class DeviceLimits(Struct, frozen=True):
    """The limits and intervals of a device."""

    concurrency: int = 4
    queue: int = 100
    """Calls that may wait besides the running ones; further calls are refused at once."""
    jobs: int = 16
    """Jobs that may run besides the calls."""
    heartbeat_s: float = 30.0
    """Seconds between two heartbeats."""
    output_bytes: int = 64 * 1024
    """The largest result in a report; the rest stays on the device."""
    dedupe_retention_s: float = 86_400.0
    """How long an ended call is remembered; no command may be valid for longer."""
    max_remembered_calls: int = 100_000
    max_unacknowledged: int = 10_000
    """Unacknowledged results that are kept; beyond that the oldest are dropped."""
    resend_delay_s: float = 2.0
    """Seconds until an unacknowledged result is sent again; doubled each time."""
    hello_retry_delay_s: float = 1.0
    """Seconds until an unanswered hello is sent again; doubled each time."""
    max_hello_delay_s: float = 1.0
    """The random delay, in seconds, before a hello that was requested by broadcast."""
    accepted_delay_s: float = 0.1
    """Seconds before a call is reported as accepted: most have ended by then."""
    progress_delay_s: float = 15.0
    """Seconds after which a call sends progress reports."""
    progress_interval_s: float = 10.0
    """Seconds between two progress reports."""


class EdgeParts(Struct, frozen=True):
    """The dependencies of a device."""

    identity: EdgeIdentity
    link: Link
    journal: Journal
    executor: Executor
    """Its tools, for the advert; the planners run them."""
    planners: Mapping[str, Planner]
    """For the commands that run something: `tool`, `execute`, `prompt`."""
    genomes: Genomes
    outcomes: Outcomes
    limits: DeviceLimits = DeviceLimits()
    has_model: bool = False
    clock: OrchestratorClock = field(default_factory=OrchestratorClock)
    accepts: frozenset[str] | None = None
    """The commands it accepts; None means all."""
    check: GrantCheck = no_grants
    """Checks the grant of a command that has no planner."""
    unsigned: frozenset[str] = UNSIGNED_COMMANDS
    """The commands that need no grant."""
    artifacts: ArtifactStore | None = None
    """The store of large outputs, removed when they expire."""
    find_model_file: FindModelFile = no_model_files
    """Finds installed model files, which other machines may copy."""
    model_receiver: ModelReceiver | None = None
    """Installs model files that orchestrators push; None if it accepts none."""
    images: BeforeImages | None = None
    """What files held before calls changed them, removed when it expires."""
    nested: PendingNestedCalls = field(default_factory=PendingNestedCalls)
    """The calls of its model that the orchestrator runs."""
    damage: str = ""
    """What of its own data was damaged and set aside; empty if nothing is."""


_SUMMARIES = {
    "sensor": "sensor node — temperature, CPU/memory/disk stats, process monitoring, "
    "camera snapshot",
    "trader": "trading agent — market data, order execution, position management",
    "governance": "governance agent — on-chain voting, proposal management",
}
_SUMMARIES["monitor"] = _SUMMARIES["sensor"]


def default_summary(agent_id: str, agent_type: str) -> str:
    """The summary of a device without a configured one."""
    return f"{agent_id} {_SUMMARIES.get(agent_type, 'edge agent')}"


def advert(
    who: EdgeIdentity, tools: Sequence[Tool], *, has_model: bool, genome: str = ""
) -> Advert:
    """The advert of a device with these tools, and a genome of this digest."""
    return Advert(
        who.agent_id,
        who.summary or default_summary(who.agent_id, who.agent_type),
        agent_type=who.agent_type,
        os=platform.system().lower(),
        arch=platform.machine(),
        version=VERSION,
        llm=has_model,
        tools=[AdvertisedTool(tool.name, tool.version, tool_hash(tool)) for tool in tools],
        genome=genome,
    )
