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
from evoclaw.store.calls.artifacts import ArtifactStore
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.link import Link


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
    """Calls that may wait beside those that run; further ones are refused at once."""
    jobs: int = 16
    """Jobs that may run beside the calls."""
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
    artifacts: ArtifactStore | None = None
    """The store of large outputs, removed when they expire."""
