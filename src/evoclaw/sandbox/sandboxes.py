"""`LocalSandboxes`: this machine's processes inside its engines, each sandbox made when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ops import ExecOps
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import find_cgroups
from evoclaw.sandbox.sandbox import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from evoclaw.sandbox.workers.pool import sandbox_unavailable

NO_ENGINE = "none"
HIDING_ENGINE = "bubblewrap"
"""The engine that can hide a part of the workspace."""
MAX_OPEN_SANDBOXES = 8
"""Sandboxes kept open: the least recently used are closed first, if nothing runs in them."""


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
        self._sandboxes: dict[tuple[str, str, bool], EngineSandbox] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def exec_in(self, engine: str = "", *, tenant: str = "local", trusted: bool = True) -> ExecOps:
        """Processes inside an engine, by default the configured one.

        An engine that is missing or failed its self-test refuses every command; another engine
        never takes its place.

        Raises:
            ToolFailure: There is no engine of that name.
        """
        name = engine or self.default
        if name == NO_ENGINE:
            return LocalProcesses(self._policy.workspace, max_bytes=self._max_bytes)
        if name not in self._engines:
            known = ", ".join(sorted(self._engines))
            raise sandbox_unavailable(f"there is no engine '{name}' here, only {known}")
        if self._policy.hidden and name != HIDING_ENGINE:
            hidden = ", ".join(self._policy.hidden)
            raise sandbox_unavailable(
                f"'{name}' cannot hide {hidden} inside the workspace, only {HIDING_ENGINE} can; "
                "work in another folder"
            )
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
            return False, failure.message
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
