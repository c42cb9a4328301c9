"""Reloads the settings of a running service; names those that need a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.api.dependencies import ReloadResult
    from evoclaw.config import EvoClawConfig
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.runtime import Runtime

EDGE_TABLES = frozenset({"flow", "network", "policy"})
"""Tables that the edge on this machine judges calls by too; it reads them at its start."""


def reload_settings(runtime: Runtime, env: Mapping[str, str]) -> ReloadResult:
    """Reload the settings; raises `ConfigError` and changes nothing if they are wrong."""
    from evoclaw.api.dependencies import ReloadResult
    from evoclaw.orchestrator.agents.definitions import agents_of, level_of
    from evoclaw.orchestrator.sessions.session_run import RunLimits
    from evoclaw.wiring.mcp_connections import mcp_definitions
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.toolbox import use_network

    reloaded = runtime.run_factory.governance.settings.reloaded(orchestrator_settings(env))
    settings = reloaded.config
    agents = agents_of(settings.agents, settings.run_defaults)
    governance = _governance_with(runtime, settings)
    for agent in agents.values():
        # Build the policies now, so that an error in the rules is reported now.
        governance.rules(level_of(agent), agent.capabilities, None, tuple)
    toolbox = runtime.run_factory.toolbox
    toolbox.mcp_servers.use(mcp_definitions(settings.mcp))
    use_network(toolbox, settings.network)
    runtime.run_factory.use_governance(governance)
    runtime.agents.clear()
    runtime.agents.update(agents)
    runtime.conversations.limits = RunLimits(budget=settings.budget)
    names = settings.orchestrator.cheaper_models
    runtime.conversations.cheaper = tuple(runtime.providers.get(name) for name in names)
    runtime.approvals.settings = settings.approvals.for_service()
    kept = EDGE_TABLES.intersection(reloaded.changed) if runtime.orchestrator.default_edge else ()
    return ReloadResult(reloaded.changed, reloaded.needs_restart, tuple(sorted(kept)))


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
