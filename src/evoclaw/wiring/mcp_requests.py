"""The options of the MCP server: what it serves, and where it listens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from evoclaw.core.ports import Approver
    from evoclaw.governance.autonomy import Level

EDGE_TIMEOUT_S = 15.0
"""Seconds that an MCP server waits for an edge."""


class McpServerOptions(Struct, frozen=True):
    """The tools that MCP clients are offered, and what their calls may do."""

    workspace: Path
    """The folder that local tools work in."""
    level: Level
    approver: Approver
    on: str | None = None
    """The edge whose tools are offered instead; `any`, or `*` for the whole fleet."""
    tools: tuple[str, ...] | None = None
    """Offer only these tools; None is all."""
    edge_timeout_s: float = EDGE_TIMEOUT_S


class McpHttpOptions(Struct, frozen=True):
    """The address that HTTP is bound to, and the token of clients."""

    host: str
    port: int
    token: str = ""
    host_names: tuple[str, ...] = ()
