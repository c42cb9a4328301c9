"""`LocalSandboxes`: this machine's processes inside its engines, each sandbox made when needed.

Each is an `EngineSandbox`: an engine and its policy, self-tested before the first command.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.ops import ExecOps
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy, WarmEngine
from evoclaw.executors.command_limits import WorkspaceWatch
from evoclaw.executors.process_output import ProcessWatch
from evoclaw.executors.process_trees import ProcessTree
from evoclaw.executors.processes import DEFAULT_PATH, LocalProcesses
from evoclaw.executors.workspace.guard import WorkspaceGuard
from evoclaw.executors.workspace.snapshot import WorkspaceSnapshot
from evoclaw.sandbox.cgroups import CgroupFactory, find_cgroups, wait_until_removed
from evoclaw.sandbox.engines.host_view import is_below
from evoclaw.sandbox.self_test import SandboxSelfTest
from evoclaw.sandbox.workers.pool import POOL_IDLE_TIMEOUT_S, WorkerPool, sandbox_unavailable
from evoclaw.sandbox.workers.trees import EngineTree, WorkerTree

T = TypeVar("T")
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/nix", "/gnu")
SANDBOX_HOME = "/tmp"
NO_ENGINE = "none"
HIDING_ENGINE = "bubblewrap"
"""The engine that can hide a part of the workspace."""
MAX_OPEN_SANDBOXES = 8
"""Sandboxes kept open: the least recently used are closed first, if nothing runs in them."""


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
        guard: WorkspaceGuard | None = None,
    ) -> None:
        """Set what builds the sandbox and what it allows.

        Args:
            engine: What builds the sandbox.
            policy: What may be reached in it.
            self_test: Tests the sandbox before the first command; none: it was tested already.
            groups: Limits whole commands by control groups, where this machine has them.
            warm: Keep a worker pool inside, if the engine can.
            idle: Seconds without a command after which the worker pool is ended.
            guard: Finds what commands may not leave in the workspace; shared by the sandboxes
                of a workspace.
        """
        self.name = engine.name
        self._given = policy.protected
        self._guard = guard or guard_for(policy)
        self._before = WorkspaceSnapshot()
        self._protected: dict[str, tuple[int, int]] = {}
        self._engine, self._policy = engine, policy
        self._self_test, self._groups, self._idle = self_test, groups, idle
        self._warm = engine if warm and isinstance(engine, WarmEngine) else None
        self._starting: asyncio.Task[WorkerPool] | None = None
        self._retired: list[WorkerPool] = []
        self._testing: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Raise `ToolFailure` unless the engine is installed and passed the self-test."""
        await self._protect()
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
        try:
            await self_test.check(self._engine, self._policy, exec)
        except ConfigError as problem:
            raise sandbox_unavailable(str(problem)) from None

    def environment(self) -> Mapping[str, str]:
        """The environment variables of every command in it."""
        shown = (*SYSTEM_FOLDERS, self._policy.workspace, *self._policy.writable)
        shown += self._policy.readable
        path = os.environ.get("PATH", DEFAULT_PATH).split(":")
        kept = [
            name for name in path if any(is_below(os.path.realpath(name), top) for top in shown)
        ]
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
        return WorkspaceWatch(self._policy, watch, self._guard, self._before)

    async def _protect(self) -> None:
        """Protect what is in the workspace now from the next command."""
        try:
            self._before, found = await asyncio.to_thread(self._find_protected)
        except ConfigError as problem:
            raise sandbox_unavailable(str(problem)) from None
        if found == self._protected:
            return
        self._protected, paths = found, tuple(found)
        if paths != self._policy.protected:
            self._policy = msgspec.structs.replace(self._policy, protected=paths)
            self._testing = None
        starting, self._starting = self._starting, None
        if starting is not None and not _belongs_elsewhere(starting):
            await asyncio.wait([starting])
            if not _has_failed(starting):
                # Other commands may still run in it.
                self._retired.append(starting.result())

    def _find_protected(self) -> tuple[WorkspaceSnapshot, dict[str, tuple[int, int]]]:
        """What is in the workspace, and the paths to protect with their device and inode.

        The kernel drops a mount on a file that is replaced outside: then a sandbox that is kept
        warm does not protect the new one.
        """
        found = self._guard.scan(max_folders=self._policy.max_folders)
        identities: dict[str, tuple[int, int]] = {}
        for path in (*self._given, *self._guard.protected(found)):
            with suppress(OSError):
                seen = os.lstat(path)
                identities[path] = (seen.st_dev, seen.st_ino)
        return found, identities

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


def guard_for(policy: SandboxPolicy) -> WorkspaceGuard:
    """The guard of the folders that a policy lets commands change."""
    return WorkspaceGuard((policy.workspace, *policy.writable), policy.hidden)


def _belongs_elsewhere(task: asyncio.Task[T]) -> bool:
    """Whether it was started in an event loop that has ended."""
    return task.get_loop() is not asyncio.get_running_loop()


def _has_failed(task: asyncio.Task[T]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class LocalSandboxes:
    """Sandboxes by engine, tenant and trust; no warm worker is shared between two of them."""

    def __init__(
        self,
        policy: SandboxPolicy,
        engines: Mapping[str, SandboxEngine],
        self_test: SandboxSelfTest,
        *,
        default: str = "bubblewrap",
        tools: Mapping[str, str] | None = None,
        warm: bool = True,
        max_bytes: int = 128 << 20,
    ) -> None:
        """Set the engines and their limits; nothing is started before the first command.

        Args:
            policy: What every sandbox allows.
            engines: The engines of this machine by name.
            self_test: Tests each sandbox before its first command.
            default: The engine of tools that name none.
            tools: Other engines, by the name of the tool.
            warm: Keep worker pools inside, where an engine can.
            max_bytes: A command that writes more than this is stopped.
        """
        self._policy, self._engines, self._self_test = policy, engines, self_test
        self.default, self._tools = default, dict(tools or {})
        """The engine of tools that name none."""
        self._warm, self._max_bytes = warm, max_bytes
        self._groups = find_cgroups()
        self._guard = guard_for(policy)
        self._sandboxes: dict[tuple[str, str, bool], EngineSandbox] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def engine_problem(self, engine: str = "") -> str:
        """Why an engine, by default the configured one, cannot be used in this workspace."""
        name = engine or self.default
        if name == NO_ENGINE:
            return ""
        if name not in self._engines:
            return (
                f"the sandbox engine '{name}' is not available here, only "
                f"{', '.join(sorted(self._engines))}"
            )
        if self._policy.hidden and name != HIDING_ENGINE:
            hidden = ", ".join(self._policy.hidden)
            return (
                f"'{name}' cannot hide {hidden} inside the workspace, only {HIDING_ENGINE} can; "
                f"work in another folder, or install {HIDING_ENGINE}"
            )
        return ""

    def exec_in(self, engine: str = "", *, tenant: str = "local", trusted: bool = True) -> ExecOps:
        """Processes inside an engine, by default the configured one.

        An engine that is missing or failed its self-test refuses every command; another engine
        never takes its place.

        Raises:
            ToolFailure: There is no engine of that name, or it cannot protect this workspace.
        """
        name = engine or self.default
        if name == NO_ENGINE:
            return LocalProcesses(self._policy.workspace, max_bytes=self._max_bytes)
        if problem := self.engine_problem(name):
            raise sandbox_unavailable(problem)
        sandbox = self._sandbox(name, tenant, trusted)
        return LocalProcesses(
            self._policy.workspace,
            roots=self._policy.writable,
            max_bytes=self._max_bytes,
            sandbox=sandbox,
        )

    def exec_for(self, tool: str, *, tenant: str = "local", trusted: bool = True) -> ExecOps:
        """Processes for one tool, inside the engine that the settings give it."""
        return self.exec_in(self._tools.get(tool, ""), tenant=tenant, trusted=trusted)

    async def check_engines(self) -> list[tuple[str, bool, str]]:
        """Each engine: its name, whether it works, and a remark; only the one in use is tested."""
        results: list[tuple[str, bool, str]] = []
        for name, engine in self._engines.items():
            if name == self.default:
                results.append((name, *await self._check_default()))
            elif name != NO_ENGINE:
                why = engine.missing()
                results.append((name, not why, why or "installed; not in use"))
        return results

    async def _check_default(self) -> tuple[bool, str]:
        if self.default == NO_ENGINE:
            return False, 'commands run without a sandbox, because [sandbox] sets engine = "none"'
        try:
            await self.exec_in().run(("true",))
        except ToolFailure as failure:
            reason = failure.details.get("reason", failure.message)
            return False, f"{reason}. No command runs until this is fixed"
        return True, "in use; it passed the self-test: every known escape was tried and blocked"

    def _sandbox(self, name: str, tenant: str, trusted: bool) -> EngineSandbox:
        key = (name, tenant, trusted)
        found = self._sandboxes.pop(key, None)
        if found is None:
            policy = msgspec.structs.replace(self._policy, tenant=tenant, trusted=trusted)
            found = EngineSandbox(
                self._engines[name],
                policy,
                self_test=self._self_test,
                groups=self._groups,
                warm=self._warm,
                guard=self._guard,
            )
        # Last is newest.
        self._sandboxes[key] = found
        idle = [
            other for other, sandbox in self._sandboxes.items() if not sandbox.busy and other != key
        ]
        for other in idle[: max(0, len(self._sandboxes) - MAX_OPEN_SANDBOXES)]:
            self._close_later(self._sandboxes.pop(other))
        return found

    def _close_later(self, sandbox: EngineSandbox) -> None:
        closing = asyncio.get_running_loop().create_task(sandbox.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End everything in every sandbox."""
        sandboxes, self._sandboxes = list(self._sandboxes.values()), {}
        for sandbox in sandboxes:
            await sandbox.close()
        if self._closing:
            await asyncio.wait(self._closing)
