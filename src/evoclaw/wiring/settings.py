"""The orchestrator's settings of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig

FILE = "evoclaw.toml"
"""In the data folder."""


def wants_evidence(env: Mapping[str, str]) -> bool:
    """Whether answers must cite the receipts of what they say was done."""
    return orchestrator_settings(env).orchestrator.evidence


def orchestrator_settings(env: Mapping[str, str]) -> EvoClawConfig:
    """What `evoclaw.toml` says, or what holds without one."""
    from evoclaw.config import read_evoclaw_toml
    from evoclaw.config.places import default_data_folder

    path = default_data_folder(env) / FILE
    return read_evoclaw_toml(path if path.exists() else None, env)
