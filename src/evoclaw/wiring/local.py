"""A run on this machine: its model, its tools, its rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Approver, Executor, Policy, Ports, Provider
from evoclaw.core.tools import ALL

if TYPE_CHECKING:
    from evoclaw.governance.autonomy import Level

ONE_TOOL = ("read",)
"""What the embedded small model is offered unless told otherwise: more than one confuses it."""


@asynccontextmanager
async def local_ports(
    *,
    model: str | None,
    workspace: Path,
    level: Level,
    tools: Sequence[str] | None,
    approver: Approver,
    env: Mapping[str, str],
) -> AsyncGenerator[Ports]:
    """What a run on this machine is given; closed, with all it started, when the block ends."""
    capabilities = capabilities_at(level)
    name = await choose_model(model, env)
    if tools is None and name.partition("/")[0] == "local":
        tools = ONE_TOOL
    executor = local_executor(workspace, capabilities, tools)
    async with open_provider(name, env) as provider:
        yield Ports(provider, executor, policy(level, capabilities), approver)


def capabilities_at(level: Level) -> frozenset[str]:
    """What an agent holds when nobody has said more than how far it may go."""
    from evoclaw.governance.autonomy import Level

    return frozenset({"file_read"}) if level is Level.READ_ONLY else frozenset({ALL})


def local_executor(
    workspace: Path, capabilities: frozenset[str], names: Sequence[str] | None
) -> Executor:
    """The built-in tools over this machine: those that may be used, or of them the named ones."""
    from evoclaw.executors.files import LocalFiles
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.processes import LocalProcesses
    from evoclaw.executors.wrapped import Filtered
    from evoclaw.tools.sets import everything

    tools = everything()
    if names is not None:
        known = {tool.name for tool in tools}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(
                f"no tool {', '.join(map(repr, unknown))}; there are: {', '.join(sorted(known))}"
            )
        tools = tuple(tool for tool in tools if tool.name in names)
    files, processes = LocalFiles(workspace), LocalProcesses(workspace)
    return Filtered(LocalExecutor(tools, files=files, exec=processes), capabilities)


def policy(level: Level, capabilities: frozenset[str]) -> Policy:
    """The rules of an agent."""
    from evoclaw.governance.autonomy import Autonomy
    from evoclaw.governance.chain import Chain
    from evoclaw.governance.permissions import Permissions

    return Chain((Permissions(capabilities), Autonomy(level)))


async def choose_model(asked: str | None, env: Mapping[str, str]) -> str:
    """The model asked for, or whichever is at hand."""
    from evoclaw.providers import find_default, how_to_get_a_model

    name = asked or env.get("EVOCLAW_MODEL") or await find_default(env)
    if not name:
        raise ConfigError(how_to_get_a_model())
    return name


@asynccontextmanager
async def open_provider(name: str, env: Mapping[str, str]) -> AsyncGenerator[Provider]:
    """A model's provider; `A,B` falls back on B."""
    from evoclaw.providers import provider_for
    from evoclaw.providers.closing import close
    from evoclaw.providers.fallback import Fallback
    from evoclaw.providers.http import Http

    async with Http() as http:
        each = [provider_for(one.strip(), http=http, env=env) for one in name.split(",")]
        provider = each[0] if len(each) == 1 else Fallback(each)
        try:
            yield provider
        finally:
            await close(provider)
