"""Settings read again while the orchestrator goes on: what can change does, the rest is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.wiring.brain import Brain
    from evoclaw.wiring.governance import Governance

LIVE = (
    "agents",
    "approvals",
    "budget",
    "flow",
    "network",
    "orchestrator",
    "policy",
    "rates",
)
"""Tables that new runs go by as soon as they are read; those that go on keep what they have."""


class Reloaded(Struct, frozen=True):
    """What became of the settings."""

    changed: tuple[str, ...]
    """Tables that are in force now."""
    restart: tuple[str, ...]
    """Tables that differ, and are in force after a restart."""


def reload(brain: Brain, env: Mapping[str, str]) -> Reloaded:
    """Read the settings again; `ConfigError` if they are wrong, and then nothing has changed."""
    from evoclaw.orchestrator.agents.definitions import agents_of, level_of
    from evoclaw.orchestrator.sessions.subruns import Limits
    from evoclaw.wiring.brain import approval_settings
    from evoclaw.wiring.settings import orchestrator_settings

    old, new = brain.equipment.governance.settings, orchestrator_settings(env)
    differ = [name for name in new.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    agents = agents_of(new)
    live = {name: getattr(new, name) for name in LIVE}
    settings = msgspec.structs.replace(old, **live)
    governance = _governance(brain, settings)
    for agent in agents.values():
        # Made as its runs will make them: what is wrong with the rules is told now.
        governance.rules(level_of(agent), agent.capabilities, None, tuple)
    brain.equipment.changed(governance)
    brain.agents.clear()
    brain.agents.update(agents)
    brain.talks.limits = Limits(budget=settings.budget)
    names = settings.orchestrator.cheaper_models
    brain.talks.cheaper = tuple(brain.providers.of(name) for name in names)
    brain.approvals.settings = approval_settings(settings)
    changed = tuple(name for name in differ if name in LIVE)
    return Reloaded(changed, tuple(name for name in differ if name not in LIVE))


def _governance(brain: Brain, settings: EvoClawConfig) -> Governance:
    """The same rules by other settings; what is counted and written down goes on."""
    from evoclaw.governance.rates import Rates

    now, folder = brain.equipment.governance, brain.home / "rates"
    guards = tuple(
        Rates(settings.rates, folder=folder, counts=one.counts) if isinstance(one, Rates) else one
        for one in now.guards
    )
    return replace(now, settings=settings, guards=guards)
