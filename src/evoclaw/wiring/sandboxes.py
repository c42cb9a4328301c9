"""Builds the sandboxes of a workspace, and the egress gateway of their commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.ops import STATE_FOLDER
from evoclaw.core.tools import Call

if TYPE_CHECKING:
    from evoclaw.core.ops import ExecOps
    from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.sandbox.egress.gateway import EgressConnection
    from evoclaw.sandbox.engines.registry import SandboxSettings
    from evoclaw.sandbox.sandboxes import LocalSandboxes

NO_ENGINE = "none"
GIT_TOOL_PREFIX = "git_"
"""These tools run one fixed program that is kept from running others, and need its settings."""


class SandboxedProcesses:
    """The processes of a workspace, sandboxed by tool, tenant and trust."""

    def __init__(self, policy: Callable[[], SandboxPolicy], settings: SandboxSettings) -> None:
        """Build nothing yet: a device that never runs a command needs no sandboxes."""
        from evoclaw.executors.processes import LocalProcesses

        self._policy, self._settings = policy, settings
        self._sandboxes: LocalSandboxes | None = None
        self.plain: ExecOps = LocalProcesses(policy().workspace)
        """Processes without a sandbox, for programs of our own choice."""

    @property
    def sandboxes(self) -> LocalSandboxes:
        """The sandboxes, built when they are first needed."""
        if self._sandboxes is None:
            self._sandboxes = _build_sandboxes(self._policy(), self._settings)
        return self._sandboxes

    async def close(self) -> None:
        """End everything in every sandbox."""
        if self._sandboxes is not None:
            await self._sandboxes.close()

    def exec_for(self, call: Call) -> ExecOps:
        """Where a call runs programs; no warm worker is shared across tenants or trust."""
        if call.name.startswith(GIT_TOOL_PREFIX):
            return self.plain
        context = call.context
        return self.sandboxes.exec_for(
            call.name, tenant=context.principal.tenant, trusted=not context.label.untrusted
        )


async def self_test_engines(
    sandboxed: SandboxedProcesses, package_engines: Mapping[str, SandboxEngine]
) -> list[tuple[str, bool, str]]:
    """Every engine: the one in use is self-tested, of the others it says how to install them."""
    results: list[tuple[str, bool, str]] = []
    for name, engine in package_engines.items():
        if name == sandboxed.sandboxes.default:
            results.append((name, *await _engine_holds(sandboxed)))
        elif name != NO_ENGINE:
            why = engine.missing()
            results.append((name, not why, why or "installed; not in use"))
    return results


async def _engine_holds(sandboxed: SandboxedProcesses) -> tuple[bool, str]:
    if sandboxed.sandboxes.default == NO_ENGINE:
        return False, 'commands run without a sandbox, because [sandbox] sets engine = "none"'
    try:
        await sandboxed.sandboxes.exec_in().run(("true",))
    except ToolFailure as failure:
        return False, failure.message
    return True, "in use; it passed the self-test: every known escape was tried and blocked"


async def open_sandboxes(
    workspace: Path,
    settings: SandboxSettings,
    domains: NetworkPolicy,
    stack: AsyncExitStack,
    *,
    data: Path,
    readable: Iterable[Path] = (),
    on_connection: Callable[[EgressConnection], None] | None = None,
) -> SandboxedProcesses:
    """The sandboxes of a workspace, closed with the stack; nothing runs before the first command.

    Args:
        workspace: The folder that commands may change.
        settings: Which engine, and its limits.
        domains: Which hosts commands may reach.
        stack: Closes them.
        data: EvoClaw's own folder: no command may see it.
        readable: Folders that commands may read beside the system's.
        on_connection: Called with every egress connection that a command requested.
    """
    root, hidden = _locate_workspace(workspace, data)
    proxy = (
        await _open_gateway(domains, stack, on_connection) if domains.commands_have_network else ""
    )
    existing = [folder for folder in readable if folder.is_dir()]

    def policy() -> SandboxPolicy:
        return settings.sandbox_policy(root, hidden=hidden, readable=existing, proxy=proxy)

    sandboxed = SandboxedProcesses(policy, settings)
    stack.push_async_callback(sandboxed.close)
    return sandboxed


def _build_sandboxes(policy: SandboxPolicy, settings: SandboxSettings) -> LocalSandboxes:
    from evoclaw.executors.protected_paths import protected_paths
    from evoclaw.sandbox.engines.native.engine import NativeEngine
    from evoclaw.sandbox.engines.registry import choose_engine, package_engines
    from evoclaw.sandbox.sandboxes import LocalSandboxes
    from evoclaw.sandbox.self_test import SandboxSelfTest

    engines = {**package_engines(), "native": NativeEngine()}
    return LocalSandboxes(
        replace(policy, protected=protected_paths(policy.workspace)),
        engines,
        SandboxSelfTest(),
        default=choose_engine(settings.engine, engines),
        tools=settings.tools,
        warm=settings.warm,
    )


def _locate_workspace(workspace: Path, data: Path) -> tuple[str, tuple[str, ...]]:
    """The real path of the workspace, and the folders in it that no command may see."""
    root, ours = os.path.realpath(workspace), os.path.realpath(data)
    if not f"{ours}/".startswith(f"{root.rstrip('/')}/"):
        return root, ()
    parts = os.path.relpath(ours, root).split("/")
    if STATE_FOLDER not in parts:
        raise ConfigError(
            f"EvoClaw's own folder '{ours}' lies inside the workspace '{root}', where tools could "
            "change it; work in another folder, or set EVOCLAW_HOME to another folder"
        )
    top = "/".join(parts[: parts.index(STATE_FOLDER) + 1])
    return root, (f"{root.rstrip('/')}/{top}",)


async def _open_gateway(
    domains: NetworkPolicy,
    stack: AsyncExitStack,
    on_connection: Callable[[EgressConnection], None] | None,
) -> str:
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.sandbox.egress.gateway import EgressGateway

    gateway = EgressGateway(
        domains.allows_for_commands,
        guard=UrlGuard(may=domains.allows),
        ports=domains.ports,
        on_connection=on_connection or (lambda connection: None),
    )
    await gateway.start()
    stack.push_async_callback(gateway.close)
    return gateway.socket
