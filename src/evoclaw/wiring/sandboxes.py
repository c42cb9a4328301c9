"""Builds the sandboxes of a workspace, and the egress gateway of their commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.ops import STATE_FOLDER

if TYPE_CHECKING:
    from evoclaw.core.ops import ExecOps
    from evoclaw.core.sandboxes import SandboxPolicy
    from evoclaw.core.tools import Call
    from evoclaw.executors.isolated_tools import IsolatedTools
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.sandbox.engines.registry import SandboxSettings
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses


async def open_sandboxes(
    workspace: Path,
    settings: SandboxSettings,
    domains: NetworkPolicy,
    stack: AsyncExitStack,
    *,
    data: Path,
    readable: Iterable[Path] = (),
) -> SandboxedProcesses:
    """The sandboxes of a workspace, closed with the stack; nothing runs before the first command.

    Args:
        workspace: The folder that commands may change.
        settings: Which engine, and its limits.
        domains: Which hosts commands may reach.
        stack: Closes them.
        data: EvoClaw's own folder: no command may see it.
        readable: Folders and files that commands may read besides the system's.
    """
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses

    root, hidden = _locate_workspace(workspace, data)
    proxy = await _open_gateway(domains, stack) if domains.commands_have_network else ""
    existing = [path for path in readable if path.exists()]

    def policy() -> SandboxPolicy:
        return settings.sandbox_policy(root, hidden=hidden, readable=existing, proxy=proxy)

    sandboxed = SandboxedProcesses(policy, settings)
    stack.push_async_callback(sandboxed.close)
    return sandboxed


async def open_isolated_tools(
    workspace: Path,
    settings: SandboxSettings,
    domains: NetworkPolicy,
    stack: AsyncExitStack,
    *,
    data: Path,
) -> IsolatedTools:
    """What runs isolated own tools: a sandbox that can also read this Python and its packages."""
    import evoclaw
    from evoclaw.executors.isolated_tools import IsolatedTools
    from evoclaw.sandbox.sandboxes import SYSTEM_FOLDERS

    folders = (Path(sys.base_prefix), Path(sys.prefix), Path(evoclaw.__file__).parent)
    outside = [f for f in folders if not any(map(f.is_relative_to, SYSTEM_FOLDERS))]
    sandboxed = await open_sandboxes(
        workspace, settings, domains, stack, data=data, readable=outside
    )

    def exec_for(call: Call | None) -> ExecOps:
        return sandboxed.exec_here() if call is None else sandboxed.exec_for_program(call)

    return IsolatedTools(exec_for)


def _locate_workspace(workspace: Path, data: Path) -> tuple[str, tuple[str, ...]]:
    """The real path of the workspace, and the folders in it that no command may see."""
    root, ours = os.path.realpath(workspace), os.path.realpath(data)
    if not f"{ours}/".startswith(f"{root.rstrip('/')}/"):
        return root, ()
    parts = os.path.relpath(ours, root).split("/")
    if STATE_FOLDER not in parts:
        raise ConfigError(
            f"EvoClaw's own folder '{ours}' is inside the workspace '{root}', where tools "
            "could change it; work in another folder, or set EVOCLAW_HOME to another folder"
        )
    top = "/".join(parts[: parts.index(STATE_FOLDER) + 1])
    return root, (f"{root.rstrip('/')}/{top}",)


async def _open_gateway(domains: NetworkPolicy, stack: AsyncExitStack) -> str:
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.sandbox.egress.gateway import EgressGateway

    gateway = EgressGateway(
        domains.allows_for_commands,
        guard=UrlGuard(may=domains.allows),
        may_use_port=domains.allows_port,
    )
    await gateway.start()
    stack.push_async_callback(gateway.close)
    return gateway.socket
