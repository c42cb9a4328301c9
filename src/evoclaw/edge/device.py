"""What a device is made of: its identity, its limits and its parts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from msgspec import Struct, field

from evoclaw.core.ports import Executor
from evoclaw.edge.clock import OrchestratorClock
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import Genomes
from evoclaw.edge.plans import GrantCheck, Planner, no_grants
from evoclaw.store.calls.artifacts import Artifacts
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.link import Link


class Identity(Struct, frozen=True):
    """Who speaks. The boot id tells this process from the ones before it."""

    agent_id: str
    agent_type: str = ""
    summary: str = ""
    """The one line it says of itself."""
    client_id: str = ""
    """Its name at the broker, if that is not its id."""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))


class Limits(Struct, frozen=True):
    """How much at once, and for how long."""

    concurrency: int = 4
    queue: int = 100
    """Calls that may wait beside those that run; the next one is refused at once."""
    jobs: int = 16
    """Jobs that may run beside the calls."""
    heartbeat: float = 30.0
    """Seconds between two signs of life."""
    output_bytes: int = 64 * 1024
    """What a report holds of one result; more stays on the device."""
    dedupe_seconds: float = 86_400.0
    """How long a call that ended is remembered; no command may be valid for longer."""
    dedupe_most: int = 100_000
    untold_most: int = 10_000
    """Results kept that nobody has acknowledged; beyond that the oldest are no longer told."""
    resend: float = 2.0
    """Seconds until a result that nobody acknowledged is sent again; doubled each time."""
    greeting: float = 1.0
    """Seconds until a hello that nobody answered is said again; doubled each time."""
    shyness: float = 1.0
    """Seconds at most before a hello that everybody was asked for: not all at the same moment."""
    accepted_after: float = 0.1
    """Seconds before a call is said to be accepted: most have ended by then, which says it too."""
    long: float = 15.0
    """Seconds after which a call says from time to time that it still goes on."""
    beat: float = 10.0
    """Seconds between two such words."""


class Parts(Struct, frozen=True):
    """What a device is made of."""

    who: Identity
    link: Link
    journal: Journal
    executor: Executor
    """Its tools, for the advert; the planners run them."""
    planners: Mapping[str, Planner]
    """For the commands that do something: `tool`, `execute`, `prompt`."""
    genomes: Genomes
    outcomes: Outcomes
    limits: Limits = Limits()
    has_model: bool = False
    clock: OrchestratorClock = field(default_factory=OrchestratorClock)
    accepts: frozenset[str] | None = None
    """The commands it takes; None means all."""
    check: GrantCheck = no_grants
    """Whether a command that the planners do not see was granted."""
    artifacts: Artifacts | None = None
    """Where big outputs are kept; what has expired is removed."""
