"""`EngineSandbox`: an engine and its policy, self-tested before the first command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy, WarmEngine
from evoclaw.executors.process_output import ProcessWatch
from evoclaw.executors.process_trees import ProcessTree
from evoclaw.executors.processes import DEFAULT_PATH, LocalProcesses
from evoclaw.executors.protected_paths import protected_paths
from evoclaw.executors.workspace_watch import WorkspaceWatch
from evoclaw.sandbox.cgroups import CgroupFactory, wait_until_removed
from evoclaw.sandbox.self_test import SandboxSelfTest
from evoclaw.sandbox.workers.cold import EngineTree
from evoclaw.sandbox.workers.pool import POOL_IDLE_TIMEOUT_S, WorkerPool, sandbox_unavailable
from evoclaw.sandbox.workers.warm import WorkerTree

T = TypeVar("T")
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/nix", "/gnu")
SANDBOX_HOME = "/tmp"


class EngineSandbox:
    """Sandboxes commands with one engine; warm where the engine can keep a worker pool inside."""

    def __init__(
        self,
        engine: SandboxEngine,
        policy: SandboxPolicy,
        *,
        self_test: SandboxSelfTest | None,
        groups: CgroupFactory | None = None,
        warm: bool = True,
        idle: float = POOL_IDLE_TIMEOUT_S,
    ) -> None:
        """Set what builds the sandbox and what it allows.

        Args:
            engine: What builds the sandbox.
            policy: What may be reached in it.
            self_test: Tests the sandbox before the first command; none: it was tested already.
            groups: Limits whole commands by control groups, where this machine has them.
            warm: Keep a worker pool inside, if the engine can.
            idle: Seconds without a command after which the worker pool is ended.
        """
        self.name = engine.name
        self._engine, self._policy = engine, policy
        self._self_test, self._groups, self._idle = self_test, groups, idle
        self._warm = engine if warm and isinstance(engine, WarmEngine) else None
        self._starting: asyncio.Task[WorkerPool] | None = None
        self._retired: list[WorkerPool] = []
        self._testing: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Raise `ToolFailure` unless the engine is installed and passed the self-test."""
        if self._self_test is None:
            return
        testing = self._testing
        if testing is None or _belongs_elsewhere(testing) or _has_failed(testing):
            testing = self._testing = asyncio.create_task(self._run_self_test(self._self_test))
        # Several commands may wait for it: cancelling one of them does not cancel the test.
        await asyncio.shield(testing)

    async def _run_self_test(self, self_test: SandboxSelfTest) -> None:
        if missing := self._engine.missing():
            raise sandbox_unavailable(missing)
        exec = LocalProcesses(self._policy.workspace, sandbox=_UntestedSandbox(self))
        await self_test.check(self._engine, self._policy, exec)

    def environment(self) -> Mapping[str, str]:
        """The environment variables of every command in it."""
        shown = (*SYSTEM_FOLDERS, self._policy.workspace, *self._policy.writable)
        shown += self._policy.readable
        path = os.environ.get("PATH", DEFAULT_PATH).split(":")
        kept = [name for name in path if any(_below(os.path.realpath(name), top) for top in shown)]
        return {
            "PATH": ":".join(kept) or DEFAULT_PATH,
            "HOME": SANDBOX_HOME,
            "TMPDIR": SANDBOX_HOME,
        }

    def tree(self) -> ProcessTree:
        """A process tree for one command."""
        if self._warm is not None:
            return WorkerTree(self._worker_pool, self._policy.proxy)
        return EngineTree(self._engine, self._policy, self._groups)

    def watch_workspace(self, watch: ProcessWatch) -> WorkspaceWatch:
        """Watch the workspace from outside while a command runs."""
        return WorkspaceWatch(self._policy, watch)

    async def protect_created(self, watched: WorkspaceWatch) -> None:
        """Protect what a command created under a protected name from the next command."""
        if not watched.grown:
            return
        paths = await asyncio.to_thread(protected_paths, self._policy.workspace)
        more = dict.fromkeys((*self._policy.protected, *paths))
        self._policy = msgspec.structs.replace(self._policy, protected=tuple(more))
        self._testing = None
        starting, self._starting = self._starting, None
        if starting is not None and not _belongs_elsewhere(starting):
            # Other commands may still run in it.
            self._retired.append(await asyncio.shield(starting))

    async def _worker_pool(self) -> WorkerPool:
        starting, dead = self._starting, None
        if starting is not None and (_belongs_elsewhere(starting) or _has_failed(starting)):
            starting = None
        if starting is not None and starting.done() and not starting.result().alive:
            starting, dead = None, starting.result()
        if starting is None:
            starting = self._starting = asyncio.create_task(self._start(dead))
        return await asyncio.shield(starting)

    async def _start(self, dead: WorkerPool | None) -> WorkerPool:
        if dead is not None:
            await dead.close()
        if self._warm is None:
            raise sandbox_unavailable(f"{self.name} cannot keep a worker pool")
        argv = self._warm.worker_pool_command(self._policy)
        worker_pool = WorkerPool(argv, self._policy, self._groups, idle=self._idle)
        await worker_pool.start()
        return worker_pool

    @property
    def busy(self) -> bool:
        """Whether a command runs in it, or may soon."""
        starting = self._starting
        if starting is None:
            return False
        return not starting.done() or (not _has_failed(starting) and starting.result().busy)

    async def close(self) -> None:
        """End the worker pool, and with it everything in the sandbox."""
        starting, self._starting = self._starting, None
        retired, self._retired = self._retired, []
        for worker_pool in retired:
            await worker_pool.close()
        await wait_until_removed(self._groups)
        if starting is None or _belongs_elsewhere(starting):
            return
        await asyncio.wait([starting])
        if not _has_failed(starting):
            await starting.result().close()


class _UntestedSandbox:
    """The same sandbox before it was tested: for the self-test itself."""

    def __init__(self, sandbox: EngineSandbox) -> None:
        self.name = sandbox.name
        self._sandbox = sandbox

    async def ready(self) -> None:
        """Do nothing: the self-test is what runs."""

    def environment(self) -> Mapping[str, str]:
        return self._sandbox.environment()

    def tree(self) -> ProcessTree:
        return self._sandbox.tree()

    def watch_workspace(self, watch: ProcessWatch) -> WorkspaceWatch:
        return self._sandbox.watch_workspace(watch)

    async def protect_created(self, watched: WorkspaceWatch) -> None:
        await self._sandbox.protect_created(watched)


def _belongs_elsewhere(task: asyncio.Task[T]) -> bool:
    """Whether it was started in an event loop that has ended."""
    return task.get_loop() is not asyncio.get_running_loop()


def _has_failed(task: asyncio.Task[T]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
