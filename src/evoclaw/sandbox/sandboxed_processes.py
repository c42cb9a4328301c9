"""`SandboxedProcesses`: where the calls of a workspace run programs, by tool, tenant and trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evoclaw.executors.processes import LocalProcesses

if TYPE_CHECKING:
    from evoclaw.core.ops import CompletedProcess, ExecOps
    from evoclaw.core.sandboxes import SandboxPolicy
    from evoclaw.core.tools import Call
    from evoclaw.sandbox.engines.registry import SandboxSettings
    from evoclaw.sandbox.sandboxes import LocalSandboxes

GIT_TOOL_PREFIX = "git_"
"""These tools run one fixed program that is kept from running others, and need its settings."""


class RefusedProcesses:
    """Refuses every command, because the configured sandbox cannot be used."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    async def run(self, argv: Sequence[str], **options: object) -> CompletedProcess:
        """Raise `ToolFailure` with the reason."""
        from evoclaw.sandbox.workers.pool import sandbox_unavailable

        raise sandbox_unavailable(self.problem)


class SandboxedProcesses:
    """The processes of a workspace, sandboxed by tool, tenant and trust."""

    def __init__(self, policy: Callable[[], SandboxPolicy], settings: SandboxSettings) -> None:
        """Build nothing yet: a device that never runs a command needs no sandboxes."""
        self._policy, self._settings = policy, settings
        self._sandboxes: LocalSandboxes | None = None
        self.plain: ExecOps = LocalProcesses(policy().workspace)
        """Processes without a sandbox, for programs that EvoClaw chooses."""

    @property
    def sandboxes(self) -> LocalSandboxes:
        """The sandboxes, built when they are first needed."""
        if self._sandboxes is None:
            self._sandboxes = _build_sandboxes(self._policy(), self._settings)
        return self._sandboxes

    def exec_here(self) -> ExecOps:
        """Processes in the configured engine; if it cannot be used, every command is refused."""
        problem = self.sandboxes.engine_problem()
        return RefusedProcesses(problem) if problem else self.sandboxes.exec_in()

    async def close(self) -> None:
        """End everything in every sandbox."""
        if self._sandboxes is not None:
            await self._sandboxes.close()

    def exec_for(self, call: Call) -> ExecOps:
        """Where a call runs programs; no warm worker is shared across tenants or trust."""
        if call.name.startswith(GIT_TOOL_PREFIX):
            return self.plain
        return self.exec_for_program(call)

    def exec_for_program(self, call: Call) -> ExecOps:
        """Where a call runs programs that EvoClaw did not choose: always sandboxed."""
        context = call.context
        return self.sandboxes.exec_for(
            call.name, tenant=context.principal.tenant, trusted=not context.label.untrusted
        )


def _build_sandboxes(policy: SandboxPolicy, settings: SandboxSettings) -> LocalSandboxes:
    from evoclaw.sandbox.engines.native.engine import NativeEngine
    from evoclaw.sandbox.engines.registry import choose_engine, package_engines
    from evoclaw.sandbox.sandboxes import LocalSandboxes
    from evoclaw.sandbox.self_test import SandboxSelfTest

    engines = {**package_engines(), "native": NativeEngine()}
    return LocalSandboxes(
        policy,
        engines,
        SandboxSelfTest(),
        default=choose_engine(settings.engine, engines),
        tools=settings.tools,
        warm=settings.warm,
    )
