"""The rules of a machine as its runs have them, without the rest of what runs are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evoclaw.core.agent import Agent
from evoclaw.core.ledgers import Ledger
from evoclaw.core.ports import Policy
from evoclaw.core.tools import Tool
from evoclaw.observe.audit.policy import Recordable
from evoclaw.observe.audit.writer import Audit
from evoclaw.orchestrator.agents.definitions import level_of
from evoclaw.tools.sets import named
from evoclaw.wiring.governing import Governance
from evoclaw.wiring.oversight import guards
from evoclaw.wiring.settings import orchestrator_settings


@dataclass
class Judged:
    """What runs are judged by."""

    governance: Governance
    chains: dict[str, Policy] = field(default_factory=dict[str, Policy])

    def tools(self, agent: Agent) -> Sequence[Tool]:
        return [bound.tool for bound in named(("read", "canvas"))]

    def chain(self, agent: Agent) -> Policy:
        if agent.name not in self.chains:
            made = self.governance.chain(level_of(agent), agent.capabilities, None, list)
            self.chains[agent.name] = made
        return self.chains[agent.name]


def judged_by(folder: Path, ledger: Ledger, audit: Audit) -> Judged:
    """The rules of a machine whose data is in a folder."""
    env = {"EVOCLAW_HOME": str(folder)}
    stops, rates = guards(env)
    settings = orchestrator_settings(env)
    governance = Governance(settings, stops, (rates, Recordable(audit)), ledger, audit)
    return Judged(governance)
