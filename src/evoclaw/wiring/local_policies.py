"""Builds the policies of this machine for `evoclaw policy`, which runs no call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.ports import Policy
from evoclaw.core.tools import Tool


class LocalPolicies(Struct, frozen=True):
    """The policies of this machine that neither count nor record, and what they are about."""

    policies: Callable[[], Sequence[Policy]]
    """Built when a call is explained: a wrong rules file fails that, not the check of another."""
    tools: Sequence[Tool]
    rules: Path | None
    workspace: Path
    home: Path
    runs: Path


def local_policies(workspace: Path, env: Mapping[str, str]) -> LocalPolicies:
    """The policies of a run in this folder at the level `supervised`."""
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.budget.memory_ledger import MemoryLedger
    from evoclaw.governance.rules.command_rules import rules_file
    from evoclaw.tools.sets import everything
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.oversight import stops_for
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    tools = [bound.tool for bound in everything()]
    # Without guards: rates count calls, and the audit would record them.
    governance = Governance(settings, stops_for(env), (), MemoryLedger(), None)

    def policies() -> Sequence[Policy]:
        level = Level.SUPERVISED
        return governance.rules(level, level.capabilities, workspace, lambda: tools)

    file = rules_file(settings.policy.rules, settings.data)
    home = Path(os.environ.get("HOME", "/"))
    return LocalPolicies(policies, tools, file, workspace, home, settings.data / "runs")
