"""Reloads the settings of a running service; names those that need a restart."""

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
"""Tables of `evoclaw.toml` that new runs use after a reload; active runs keep theirs."""


class Reloaded(Struct, frozen=True):
    """The tables of `evoclaw.toml` that differ after a reload."""

    changed: tuple[str, ...]
    """Tables that are in use now."""
    restart: tuple[str, ...]
    """Tables that take effect after a restart."""


def reload(brain: Brain, env: Mapping[str, str]) -> Reloaded:
    """Reload the settings; raises `ConfigError` and changes nothing if they are wrong."""
    from evoclaw.orchestrator.agents.definitions import agents_of, level_of
    from evoclaw.orchestrator.sessions.subruns import Limits
    from evoclaw.wiring.brain import approval_settings
    from evoclaw.wiring.settings import orchestrator_settings

    old, new = brain.equipment.governance.settings, orchestrator_settings(env)
    different = [name for name in new.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    agents = agents_of(new)
    live = {name: getattr(new, name) for name in LIVE}
    settings = msgspec.structs.replace(old, **live)
    governance = _governance(brain, settings)
    for agent in agents.values():
        # Build the policies now, so that an error in the rules is reported now.
        governance.rules(level_of(agent), agent.capabilities, None, tuple)
    brain.equipment.changed(governance)
    brain.agents.clear()
    brain.agents.update(agents)
    brain.talks.limits = Limits(budget=settings.budget)
    names = settings.orchestrator.cheaper_models
    brain.talks.cheaper = tuple(brain.providers.of(name) for name in names)
    brain.approvals.settings = approval_settings(settings)
    changed = tuple(name for name in different if name in LIVE)
    return Reloaded(changed, tuple(name for name in different if name not in LIVE))


def _governance(brain: Brain, settings: EvoClawConfig) -> Governance:
    """The same governance with other settings; counts and audit continue."""
    from evoclaw.governance.rates import Rates

    current, folder = brain.equipment.governance, brain.home / "rates"
    guards = tuple(
        Rates(settings.rates, folder=folder, counts=policy.counts)
        if isinstance(policy, Rates)
        else policy
        for policy in current.guards
    )
    return replace(current, settings=settings, guards=guards)
