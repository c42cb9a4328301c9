"""The rules of a machine as its runs have them, without the rest of what runs are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evoclaw.core.agent import Agent
from evoclaw.core.ledgers import Ledger
from evoclaw.core.ports import Policy
from evoclaw.core.tools import Tool
from evoclaw.governance.autonomy import Level
from evoclaw.observe.audit.writer import Audit, Recordable
from evoclaw.orchestrator.agents.definitions import level_of
from evoclaw.orchestrator.agents.policy_explainer import GovernanceSettings, PolicyExplainer
from evoclaw.tools.catalogue import load
from evoclaw.wiring.governance import Governance
from evoclaw.wiring.oversight import rate_limits, stops_for
from evoclaw.wiring.pipelines import edge_pipeline, service_pipeline
from evoclaw.wiring.settings import orchestrator_settings


@dataclass
class MachinePolicies:
    """What runs are judged by."""

    governance: Governance
    made: dict[str, tuple[Policy, ...]] = field(default_factory=dict[str, tuple[Policy, ...]])

    def tools(self, agent: Agent) -> Sequence[Tool]:
        return [bound.tool for bound in load(("read", "canvas"))]

    def policies(self, agent: Agent, level: Level | None = None) -> tuple[Policy, ...]:
        if level is not None:
            return self.governance.rules(level, agent.capabilities, None, list)
        if agent.name not in self.made:
            made = self.governance.rules(level_of(agent), agent.capabilities, None, list)
            self.made[agent.name] = made
        return self.made[agent.name]

    def explainer(self, agents: Mapping[str, Agent]) -> PolicyExplainer:
        found = self.governance.settings
        settings = GovernanceSettings(
            found.policy, found.flow, found.network, found.rates, found.sandbox_settings
        )
        return PolicyExplainer(
            agents=agents,
            tools=self.tools,
            policies=self.policies,
            settings=lambda: settings,
            pipelines=(service_pipeline(), edge_pipeline()),
        )


def machine_policies(folder: Path, ledger: Ledger, audit: Audit) -> MachinePolicies:
    """The rules of a machine whose data is in a folder."""
    env = {"EVOCLAW_HOME": str(folder)}
    stops, rates = stops_for(env), rate_limits(env, None)
    settings = orchestrator_settings(env)
    governance = Governance(settings, stops, (rates, Recordable(audit)), ledger, audit)
    return MachinePolicies(governance)
