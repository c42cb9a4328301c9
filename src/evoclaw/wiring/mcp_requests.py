"""What an MCP server of ours serves, and where it listens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from evoclaw.core.ports import Approver
    from evoclaw.governance.autonomy import Level

EDGE_TIMEOUT_S = 15.0
"""Seconds that an MCP server waits for an edge."""


class Wanted(Struct, frozen=True):
    """Which tools clients are offered, and what they may do."""

    workspace: Path
    """Where local tools work."""
    level: Level
    approver: Approver
    on: str | None = None
    """An edge whose tools are offered instead; `any`, or `*` for each."""
    tools: tuple[str, ...] | None = None
    """These tools only."""
    wait: float = EDGE_TIMEOUT_S


class Door(Struct, frozen=True):
    """Where HTTP listens, and what clients must show."""

    host: str
    port: int
    token: str = ""
    names: tuple[str, ...] = ()
