"""What a device is made of."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from evoclaw.core.ports import Executor
from evoclaw.edge.clock import OrchestratorClock
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import Genomes
from evoclaw.edge.identity import Identity, Limits
from evoclaw.edge.plans import GrantCheck, Planner, no_grants
from evoclaw.store.calls.artifacts import Artifacts
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.link import Link


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
