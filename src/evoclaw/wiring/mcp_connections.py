"""Connects to the MCP servers that `evoclaw.toml` names, with the approvals of their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from evoclaw.config.evoclaw_toml import McpConfig
    from evoclaw.executors.mcp.offers import McpServer
    from evoclaw.executors.mcp.pins import PinFile
    from evoclaw.executors.mcp.servers import McpServers

PINS_FILE = "approved-mcp.json"


def mcp_pins(env: Mapping[str, str]) -> PinFile:
    """The approved tools of MCP servers, by hash."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.executors.mcp.pins import PinFile

    return PinFile(default_data_folder(env) / PINS_FILE)


def mcp_servers(env: Mapping[str, str]) -> McpServers:
    """The configured MCP servers; connected while they are entered as a context."""
    from evoclaw.executors.mcp.servers import McpServers
    from evoclaw.wiring.settings import orchestrator_settings

    return McpServers(mcp_definitions(orchestrator_settings(env).mcp), mcp_pins(env))


def mcp_definitions(settings: Sequence[McpConfig]) -> list[McpServer]:
    """The servers that the `[[mcp]]` tables of the settings define."""
    from evoclaw.executors.mcp.offers import McpServer

    return [McpServer(**msgspec.structs.asdict(server)) for server in settings]
