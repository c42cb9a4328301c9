"""What `agent.toml` (an edge) and `evoclaw.toml` (an orchestrator) say, checked and typed."""

from evoclaw.config.agent_toml import (
    COMMANDS,
    EdgeConfig,
    EdgeLimits,
    EdgeTools,
    ModelConfig,
    read_agent_toml,
    write_agent_toml,
)
from evoclaw.config.broker import BrokerConfig, broker_password
from evoclaw.config.evoclaw_toml import (
    AgentConfig,
    EvoClawConfig,
    OrchestratorConfig,
    OrchestratorTools,
    read_evoclaw_toml,
)
from evoclaw.config.places import default_data_folder
from evoclaw.config.values import Engine

__all__ = [
    "COMMANDS",
    "AgentConfig",
    "BrokerConfig",
    "EdgeConfig",
    "EdgeLimits",
    "EdgeTools",
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
