"""Reads `agent.toml` (an edge) and `evoclaw.toml` (an orchestrator) into typed settings."""

from importlib import import_module
from typing import TYPE_CHECKING

from evoclaw.config.agent_toml import (
    COMMANDS,
    EdgeConfig,
    EdgeLimits,
    EdgeToolsConfig,
    ModelConfig,
    read_agent_toml,
    write_agent_toml,
)
from evoclaw.config.paths import default_data_folder
from evoclaw.config.shared_settings import BrokerConfig, Engine, broker_password

if TYPE_CHECKING:
    from evoclaw.config.evoclaw_toml import (
        AgentConfig,
        EvoClawConfig,
        OrchestratorConfig,
        OrchestratorTools,
        read_evoclaw_toml,
    )

__all__ = [
    "COMMANDS",
    "AgentConfig",
    "BrokerConfig",
    "EdgeConfig",
    "EdgeLimits",
    "EdgeToolsConfig",
    "Engine",
    "EvoClawConfig",
    "ModelConfig",
    "OrchestratorConfig",
    "OrchestratorTools",
    "broker_password",
    "default_data_folder",
    "read_agent_toml",
    "read_evoclaw_toml",
    "write_agent_toml",
]


def __getattr__(name: str) -> object:
    """Load `evoclaw_toml` on first use: an edge does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("evoclaw.config.evoclaw_toml"), name)
