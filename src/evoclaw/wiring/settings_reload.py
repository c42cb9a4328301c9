"""Reloads the settings of a running service; names those that need a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.runtime import Runtime

LIVE_TABLES = (
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


class ReloadResult(Struct, frozen=True):
    """The tables of `evoclaw.toml` that differ after a reload."""

    changed: tuple[str, ...]
    """Tables that are in use now."""
    needs_restart: tuple[str, ...]
    """Tables that take effect after a restart."""


def reload_settings(runtime: Runtime, env: Mapping[str, str]) -> ReloadResult:
    """Reload the settings; raises `ConfigError` and changes nothing if they are wrong."""
    from evoclaw.orchestrator.agents.definitions import agents_of, level_of
    from evoclaw.orchestrator.sessions.subruns import RunLimits
    from evoclaw.wiring.runtime import approval_settings
    from evoclaw.wiring.settings import orchestrator_settings

    old, new = runtime.run_factory.governance.settings, orchestrator_settings(env)
    different = [name for name in new.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    agents = agents_of(new.agents, new.run_defaults)
    live = {name: getattr(new, name) for name in LIVE_TABLES}
    settings = msgspec.structs.replace(old, **live)
    governance = _governance_with(runtime, settings)
    for agent in agents.values():
        # Build the policies now, so that an error in the rules is reported now.
        governance.rules(level_of(agent), agent.capabilities, None, tuple)
    runtime.run_factory.use_governance(governance)
    runtime.agents.clear()
    runtime.agents.update(agents)
    runtime.conversations.limits = RunLimits(budget=settings.budget)
    names = settings.orchestrator.cheaper_models
    runtime.conversations.cheaper = tuple(runtime.providers.get(name) for name in names)
    runtime.approvals.settings = approval_settings(settings)
    changed = tuple(name for name in different if name in LIVE_TABLES)
    return ReloadResult(changed, tuple(name for name in different if name not in LIVE_TABLES))


def _governance_with(runtime: Runtime, settings: EvoClawConfig) -> Governance:
    """The same governance with other settings; counts and audit continue."""
    from evoclaw.governance.rate_limits import RateLimits

    current, folder = runtime.run_factory.governance, runtime.home / "rates"
    guards = tuple(
        RateLimits(settings.rates, folder=folder, counts=policy.counts)
        if isinstance(policy, RateLimits)
        else policy
        for policy in current.guards
    )
    return replace(current, settings=settings, guards=guards)
