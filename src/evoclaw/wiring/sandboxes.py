"""The cages of a workspace: what its commands run in, and the one way out of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.ops import CLOSED
from evoclaw.core.tools import Call

if TYPE_CHECKING:
    from evoclaw.core.ops import ExecOps
    from evoclaw.core.sandboxes import Confines, Engine
    from evoclaw.governance.network import Domains
    from evoclaw.sandbox.egress.gateway import Passage
    from evoclaw.sandbox.engines.registry import SandboxSettings
    from evoclaw.sandbox.sandboxes import LocalCages

NONE = "none"
GIT = "git_"
"""These tools run one fixed program that is kept from running others, and need its settings."""


class Caged:
    """Processes of a workspace, by who asks for them."""

    def __init__(self, confines: Callable[[], Confines], settings: SandboxSettings) -> None:
        """Build nothing yet: a device that is never given a command carries no cages."""
        from evoclaw.executors.processes import LocalProcesses

        self._confines, self._settings = confines, settings
        self._cages: LocalCages | None = None
        self.plain: ExecOps = LocalProcesses(confines().workspace)
        """Without a cage, for programs of our own choice."""

    @property
    def cages(self) -> LocalCages:
        """The cages, built when they are first needed."""
        if self._cages is None:
            self._cages = _built(self._confines(), self._settings)
        return self._cages

    async def close(self) -> None:
        """End everything in every cage."""
        if self._cages is not None:
            await self._cages.close()

    def exec_for(self, call: Call) -> ExecOps:
        """What a call may run programs in; nothing warm is shared across tenants or trust."""
        if call.name.startswith(GIT):
            return self.plain
        context = call.context
        return self.cages.exec_for(
            call.name, tenant=context.principal.tenant, trusted=not context.label.untrusted
        )


async def tried_out(caged: Caged, engines: Mapping[str, Engine]) -> list[tuple[str, bool, str]]:
    """The engines there are: of the one in use whether it holds, of the others how to get them."""
    found: list[tuple[str, bool, str]] = []
    for name, engine in engines.items():
        if name == caged.cages.default:
            found.append((name, *await _holds(caged)))
        elif name != NONE:
            why = engine.missing()
            found.append((name, not why, why or "installed; not in use"))
    return found


async def _holds(caged: Caged) -> tuple[bool, str]:
    if caged.cages.default == NONE:
        return False, 'commands run without a cage, because [sandbox] says engine = "none"'
    try:
        await caged.cages.exec_in().run(("true",))
    except ToolFailure as failure:
        return False, failure.message
    return True, "in use; every way out that we know was tried, and it held"


async def open_cages(
    workspace: Path,
    settings: SandboxSettings,
    domains: Domains,
    stack: AsyncExitStack,
    *,
    data: Path,
    readable: Iterable[Path] = (),
    passed: Callable[[Passage], None] | None = None,
) -> Caged:
    """The cages of a workspace, closed with the stack; nothing runs before the first command.

    Args:
        workspace: The folder that commands may change.
        settings: Which engine, and its limits.
        domains: Which hosts commands may reach.
        stack: Closes them.
        data: Our own folder: no command may see it.
        readable: Folders that commands may read beside the system's.
        passed: Told of every connection that was asked for.
    """
    place, hidden = _place(workspace, data)
    proxy = await _gateway(domains, stack, passed) if domains.open_to_commands else ""
    there = [folder for folder in readable if folder.is_dir()]

    def confines() -> Confines:
        return settings.confines(place, hidden=hidden, readable=there, proxy=proxy)

    caged = Caged(confines, settings)
    stack.push_async_callback(caged.close)
    return caged


def _built(confines: Confines, settings: SandboxSettings) -> LocalCages:
    from evoclaw.executors.protected_paths import guarded
    from evoclaw.sandbox.engines.native.engine import Native
    from evoclaw.sandbox.engines.registry import choose, engines
    from evoclaw.sandbox.sandboxes import LocalCages
    from evoclaw.sandbox.self_test import Canary

    there = {**engines(), "native": Native()}
    return LocalCages(
        replace(confines, protected=guarded(confines.workspace)),
        there,
        Canary(),
        default=choose(settings.engine, there),
        tools=settings.tools,
        warm=settings.warm,
    )


def _place(workspace: Path, data: Path) -> tuple[str, tuple[str, ...]]:
    """Where the workspace really is, and what of ours in it no command may see."""
    place, ours = os.path.realpath(workspace), os.path.realpath(data)
    if not f"{ours}/".startswith(f"{place.rstrip('/')}/"):
        return place, ()
    parts = os.path.relpath(ours, place).split("/")
    if CLOSED not in parts:
        raise ConfigError(
            f"EvoClaw's own folder {ours} lies inside the workspace {place}, where tools could "
            "change it; work in another folder, or name another one with EVOCLAW_HOME"
        )
    top = "/".join(parts[: parts.index(CLOSED) + 1])
    return place, (f"{place.rstrip('/')}/{top}",)


async def _gateway(
    domains: Domains, stack: AsyncExitStack, passed: Callable[[Passage], None] | None
) -> str:
    from evoclaw.executors.url_guard import Guard
    from evoclaw.sandbox.egress.gateway import Gateway

    gateway = Gateway(
        domains.commands_may,
        guard=Guard(may=domains.may),
        ports=domains.ports,
        passed=passed or (lambda passage: None),
    )
    await gateway.start()
    stack.push_async_callback(gateway.close)
    return gateway.socket
