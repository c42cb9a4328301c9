"""Sandboxes to run commands in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CompletedProcess
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.executors.workspace.guard import WorkspaceGuard
from evoclaw.sandbox.cgroups import find_cgroups
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.sandboxes import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest

MB = 1 << 20


def protected_paths(workspace: str) -> tuple[str, ...]:
    """What a sandbox mounts read-only in a workspace."""
    guard = WorkspaceGuard([workspace])
    return guard.protected(guard.scan())


def policy(workspace: Path, **more: object) -> SandboxPolicy:
    place = os.path.realpath(workspace)
    return SandboxPolicy(place, protected=protected_paths(place), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def sandboxed(
    bounds: SandboxPolicy,
    engine: SandboxEngine | None = None,
    *,
    warm: bool = True,
    groups: bool = True,
    max_bytes: int = 128 * MB,
) -> AsyncGenerator[LocalProcesses]:
    """Processes in a sandbox that was tried out; skips where this machine cannot build one."""
    chosen = engine or Bubblewrap()
    if missing := chosen.missing():
        pytest.skip(missing)
    found = find_cgroups() if groups else None
    sandbox = EngineSandbox(chosen, bounds, self_test=SandboxSelfTest(), groups=found, warm=warm)
    try:
        try:
            await sandbox.ready()
        except ToolFailure as problem:
            if problem.kind is not ErrorKind.SANDBOX_UNAVAILABLE or may_sandbox():
                raise
            pytest.skip(f"no sandbox can be built here: {problem}")
        yield LocalProcesses(bounds.workspace, sandbox=sandbox, max_bytes=max_bytes)
    finally:
        await sandbox.close()


def may_sandbox() -> bool:
    """Whether namespaces are allowed here at all: then a refusal is a failure of ours."""
    pid = os.fork()
    if pid == 0:
        # 0x10000000: a user namespace.
        import ctypes

        os._exit(0 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0


async def output_of(processes: LocalProcesses, command: str) -> str:
    """What a command says, which must go well."""
    done = await run(processes, command)
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode().strip()


async def run(
    processes: LocalProcesses, command: str, on_output: Callable[[str], None] | None = None
) -> CompletedProcess:
    async with asyncio.timeout(30):
        return await processes.run(["bash", "-c", command], on_output=on_output)


async def failure_of(processes: LocalProcesses, command: str) -> ToolFailure:
    """The failure of a command, which must fail."""
    with pytest.raises(ToolFailure) as caught:
        done = await run(processes, command)
        pytest.fail(f"it was let through: {done}")
    return caught.value


def listing(folder: Path, pattern: str = "*") -> list[str]:
    """All that lies in a folder, at any depth."""
    return sorted(map(str, folder.rglob(pattern)))


def owner(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid
