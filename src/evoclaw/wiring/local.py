"""A run on this machine: its model, its tools, its rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Approver, Executor, Policy, Ports, Provider
from evoclaw.core.tools import ALL

if TYPE_CHECKING:
    from evoclaw.governance.autonomy import Level
    from evoclaw.wiring.toolbox import Toolbox

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
    given: Mapping[type, object] | None = None,
) -> AsyncGenerator[Ports]:
    """What a run on this machine is given; closed, with all it started, when the block ends."""
    from evoclaw.wiring.oversight import guards
    from evoclaw.wiring.toolbox import open_toolbox

    capabilities = capabilities_at(level)
    name = await choose_model(model, env)
    tools = for_model(name, tools)
    async with open_provider(name, env) as provider:
        more = {**eyes(provider), **(given or {})}
        async with open_toolbox(workspace, env, given=more) as box:
            executor = box_executor(box, capabilities, tools)
            rules = policy(level, capabilities, *guards(env))
            yield Ports(provider, executor, rules, approver)


def for_model(name: str, tools: Sequence[str] | None) -> Sequence[str] | None:
    """The tools asked for, or what this model can cope with; None is all there are."""
    small = name.partition("/")[0] == "local"
    return ONE_TOOL if tools is None and small else tools


def eyes(provider: Provider) -> dict[type, object]:
    """Who looks at pictures: the model itself, if it can."""
    from evoclaw.tools.image import OwnEyes, Vision
    from evoclaw.tools.pictures import why_unavailable

    able = provider.profile.images and not why_unavailable()
    return {Vision: OwnEyes(sees=True)} if able else {}


def capabilities_at(level: Level) -> frozenset[str]:
    """What an agent holds when nobody has said more than how far it may go."""
    from evoclaw.governance.autonomy import Level

    return frozenset({"file_read"}) if level is Level.READ_ONLY else frozenset({ALL})


def box_executor(
    box: Toolbox, capabilities: frozenset[str], names: Sequence[str] | None
) -> Executor:
    """The tools of a toolbox and of the skills: those that may be used, or the named ones."""
    from evoclaw.core.ops import ExecOps
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.routed import Routed
    from evoclaw.executors.wrapped import Filtered
    from evoclaw.skills.executing import SkillExecutor
    from evoclaw.skills.narrowing import Narrowed

    tools = box.tools
    if names is not None:
        known = {tool.name for tool in tools}
        away = {one.name: one.why for one in box.absent}
        for name in names:
            if name in away:
                raise ConfigError(f"the tool {name!r} cannot be used here: {away[name]}")
            if name not in known:
                there = ", ".join(sorted(known))
                raise ConfigError(f"no tool {name!r}; there are: {there}")
        tools = tuple(tool for tool in tools if tool.name in names)
    executor: Executor = LocalExecutor(tools, given=box.given)
    if names is None:
        processes = cast("ExecOps", box.given[ExecOps])
        skills = SkillExecutor(box.shelf, processes)
        executor = Routed([executor, skills, box.own, *box.servers])
    return Narrowed(Filtered(executor, capabilities), box.shelf)


def edge_executor(
    workspace: Path, capabilities: frozenset[str], names: Sequence[str] | None
) -> Executor:
    """The tools of an edge: files, commands, pages, and the device itself."""
    from evoclaw.executors.devices import LocalDevice, LocalNotifier
    from evoclaw.executors.fetching import WebFetcher
    from evoclaw.executors.files import LocalFiles
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.processes import LocalProcesses
    from evoclaw.executors.wrapped import Filtered
    from evoclaw.tools.device import Device, Notifier, device, notify
    from evoclaw.tools.sets import named, remote
    from evoclaw.tools.web import Fetcher
    from evoclaw.wiring.toolbox import with_program

    files, processes = LocalFiles(workspace), LocalProcesses(workspace)
    person = LocalNotifier(processes)
    others = (*named(("webfetch",)), device, *((notify,) if person.works else ()))
    tools = (*with_program(remote()), *others)
    if names is not None:
        known = {tool.name for tool in tools}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(
                f"no tool {', '.join(map(repr, unknown))}; there are: {', '.join(sorted(known))}"
            )
        tools = tuple(tool for tool in tools if tool.name in names)
    given = {Fetcher: WebFetcher(), Device: LocalDevice(processes), Notifier: person}
    return Filtered(LocalExecutor(tools, files=files, exec=processes, given=given), capabilities)


def policy(level: Level, capabilities: frozenset[str], *before: Policy) -> Policy:
    """The rules of an agent."""
    from evoclaw.governance.autonomy import Autonomy
    from evoclaw.governance.chain import Chain
    from evoclaw.governance.permissions import Permissions

    return Chain((*before, Permissions(capabilities), Autonomy(level)))


async def choose_model(asked: str | None, env: Mapping[str, str]) -> str:
    """The model asked for, or whichever is at hand."""
    from evoclaw.providers import find_default, how_to_get_a_model

    name = asked or env.get("EVOCLAW_MODEL") or await find_default(env)
    if not name:
        raise ConfigError(how_to_get_a_model())
    return name


async def model_at_hand(env: Mapping[str, str]) -> tuple[str, str]:
    """The model that a run would get, or how to get one."""
    try:
        return await choose_model(None, env), ""
    except ConfigError as problem:
        return "", str(problem)


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
