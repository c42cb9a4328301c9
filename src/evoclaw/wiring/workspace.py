"""What a run on this machine is told about its workspace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.messages import UserMessage


def workspace_messages(workspace: Path, env: Mapping[str, str]) -> tuple[UserMessage, ...]:
    """The text of the workspace for agents, as the settings allow it."""
    from evoclaw.orchestrator.agents.workspace_text import workspace_message
    from evoclaw.wiring.settings import orchestrator_settings

    trust = orchestrator_settings(env).orchestrator.tools.workspace_text
    found = workspace_message(workspace, trust)
    return () if found is None else (found,)
