"""Calling a tool as the loop does: arguments checked against its schema first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.tools import Call
from evoclaw.core.toolset import Toolset
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.catalogue import load


def session_tools() -> tuple[BoundTool, ...]:
    """The tools that list, read, start and message sessions."""
    return load(
        (
            "task",
            "sessions_list",
            "sessions_history",
            "sessions_send",
            "sessions_spawn",
            "session_status",
            "agents_list",
        )
    )


def call_of(bound: BoundTool, **arguments: JSON) -> Call:
    found = Toolset([bound.tool]).find(bound.name)
    assert found is not None
    assert found[1].is_valid(arguments), list(found[1].iter_errors(arguments))
    return Call("c1", bound.tool, arguments, "r.1.0.1", bound.tool.timeout)


async def use(
    bound: BoundTool,
    machine: Path | FileOps,
    *,
    exec: ExecOps | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **arguments: JSON,
) -> ToolResult:
    files = LocalFiles(machine) if isinstance(machine, Path) else machine
    if exec is None and isinstance(machine, Path):
        exec = LocalProcesses(machine)
    executor = LocalExecutor([bound], files=files, exec=exec)
    async with asyncio.timeout(20):
        return await executor.execute(call_of(bound, **arguments), progress)
