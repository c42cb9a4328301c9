"""Connects to the MCP servers that `evoclaw.toml` names, with the approvals of their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.mcp.pins import PinFile

PINS_FILE = "approved-mcp.json"


def mcp_pins(env: Mapping[str, str]) -> PinFile:
    """The approved tools of MCP servers, by hash."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.executors.mcp.pins import PinFile

    return PinFile(default_data_folder(env) / PINS_FILE)


async def connect_mcp_servers(
    env: Mapping[str, str], stack: AsyncExitStack
) -> Sequence[McpExecutor]:
    """Connect to every configured MCP server until the stack is closed."""
    from evoclaw.wiring.settings import orchestrator_settings

    config = orchestrator_settings(env)
    if not config.mcp:
        return ()
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.mcp.offers import McpServer

    pins = mcp_pins(env)
    return [
        await stack.enter_async_context(
            McpExecutor(McpServer(**msgspec.structs.asdict(server)), pins)
        )
        for server in config.mcp
    ]
