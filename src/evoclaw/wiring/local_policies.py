"""Builds the policies of this machine for `evoclaw policy`, which runs no call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.ports import Policy
from evoclaw.core.tools import Tool


class LocalPolicies(Struct, frozen=True):
    """The policies of this machine that neither count nor record, and what they are about."""

    policies: Sequence[Policy]
    tools: Sequence[Tool]
    rules: Path | None
    workspace: Path
    home: Path
    runs: Path


def local_policies(workspace: Path, env: Mapping[str, str]) -> LocalPolicies:
    """The policies of a run in this folder at the level `supervised`."""
    from evoclaw.core.tools import ALL_PERMISSIONS
    from evoclaw.governance.autonomy import Autonomy, Level
    from evoclaw.governance.flow.policy import Flow
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.governance.permissions import Permissions
    from evoclaw.governance.rules.command_rules import CommandRules, rules_file
    from evoclaw.governance.rules.tool_status import ToolStatus
    from evoclaw.governance.stops import Stops
    from evoclaw.tools.sets import everything
    from evoclaw.wiring.oversight import stop_files
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    tools = [bound.tool for bound in everything()]
    file = rules_file(settings.policy.rules, settings.data)
    policies = (
        Stops(*stop_files(env)),
        ToolStatus(settings.policy.off),
        Autonomy(Level.SUPERVISED),
        Permissions(frozenset({ALL_PERMISSIONS})),
        CommandRules(file, workspace),
        NetworkPolicy(settings.network),
        Flow(settings.flow, lambda: tools),
    )
    home = Path(os.environ.get("HOME", "/"))
    return LocalPolicies(policies, tools, file, workspace, home, settings.data / "runs")
