"""Copying a big output from an edge: in pieces, each checked, going on where it was cut off."""

from __future__ import annotations

from pathlib import Path

from evoclaw.executors.edge import EdgeExecutor


async def fetch(edge: EdgeExecutor, handle: str, path: Path, room: int) -> int:
    """Copy an artifact of an edge to a file; how many bytes it has."""
    raise NotImplementedError
