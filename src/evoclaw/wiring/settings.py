"""The orchestrator's settings of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.core.agent import LoopSettings

FILE = "evoclaw.toml"
"""In the data folder."""


def loop_settings(env: Mapping[str, str]) -> LoopSettings:
    """What bounds a run of whoever says nothing else."""
    from evoclaw.core.agent import LoopSettings

    chosen = orchestrator_settings(env).orchestrator
    return LoopSettings(
        max_turns=chosen.max_tool_iterations,
        tool_error_limit=chosen.tool_error_limit,
        evidence=chosen.evidence,
    )


def settings_text(env: Mapping[str, str]) -> str:
    """Every setting of `evoclaw.toml` with its default, explained and commented out."""
    from evoclaw.config import read_evoclaw_toml
    from evoclaw.config.template import template

    # By what holds without a file, and without variables that say otherwise just now.
    home = {name: env[name] for name in ("EVOCLAW_HOME", "HOME") if name in env}
    return template(read_evoclaw_toml(None, home))


def orchestrator_settings(env: Mapping[str, str]) -> EvoClawConfig:
    """What `evoclaw.toml` says, or what holds without one."""
    from evoclaw.config import read_evoclaw_toml
    from evoclaw.config.places import default_data_folder

    path = default_data_folder(env) / FILE
    return read_evoclaw_toml(path if path.exists() else None, env)
