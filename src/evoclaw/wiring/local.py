"""A run on this machine: its model, its tools, its rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Approver, Executor, Ports
from evoclaw.core.tools import ALL

if TYPE_CHECKING:
    from evoclaw.core.messages import Message
    from evoclaw.core.state import Begun
    from evoclaw.governance.autonomy import Level
    from evoclaw.wiring.toolbox import Toolbox


@asynccontextmanager
async def local_ports(
    *,
    model: str | None,
    workspace: Path,
    level: Level,
    tools: Sequence[str] | None,
    approver: Approver,
    env: Mapping[str, str],
    run: Begun,
    given: Mapping[type, object] | None = None,
) -> AsyncGenerator[Ports]:
    """What a run on this machine is given; closed, with all it started, when the block ends."""
    from evoclaw.executors.receipted import Receipted
    from evoclaw.wiring.governing import governed_ports, open_governance
    from evoclaw.wiring.models import choose_model, eyes, for_model, open_provider
    from evoclaw.wiring.receipts import open_signer
    from evoclaw.wiring.toolbox import open_toolbox

    capabilities = capabilities_at(level, env)
    name = await choose_model(model, env)
    tools = for_model(name, tools)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(open_governance(env))
        provider = await stack.enter_async_context(open_provider(name, env))
        more = {**eyes(provider), **(given or {})}
        box = await stack.enter_async_context(open_toolbox(workspace, env, given=more))
        state = run.state
        said = state.history if state.started else state.opening
        executor = box_executor(box, capabilities, tools, said)
        signer = await stack.enter_async_context(open_signer(env))
        yield await stack.enter_async_context(
            governed_ports(
                governance,
                provider=provider,
                model=name,
                executor=Receipted(executor, signer),
                approver=approver,
                level=level,
                capabilities=capabilities,
                workspace=workspace,
                run=run,
                env=env,
            )
        )


def capabilities_at(level: Level, env: Mapping[str, str]) -> frozenset[str]:
    """What an agent holds when nobody has said more than how far it may go.

    Never more than `permissions` grants, and nothing where the tool loop is switched off.
    """
    from evoclaw.core.agent import narrowed
    from evoclaw.governance.autonomy import Level
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env).orchestrator
    if not settings.tool_loop_enabled:
        return frozenset()
    held = frozenset({"file_read"}) if level is Level.READ_ONLY else frozenset({ALL})
    granted = settings.tools.granted
    return held if granted is None else narrowed(held, granted)


def box_executor(
    box: Toolbox,
    capabilities: frozenset[str],
    names: Sequence[str] | None,
    history: Iterable[Message] = (),
) -> Executor:
    """The tools of a toolbox and of the skills: those that may be used, or the named ones.

    Skills whose instructions are in the history are still followed.
    """
    from evoclaw.core.ops import ExecOps
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.routed import Routed
    from evoclaw.executors.wrapped import Filtered
    from evoclaw.skills.binary import Cages
    from evoclaw.skills.executing import SkillExecutor
    from evoclaw.skills.narrowing import Narrowed
    from evoclaw.wiring.cages import Caged

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
    caged = cast("Caged", box.given[Caged])
    executor: Executor = LocalExecutor(tools, given=box.given, exec_for=caged.exec_for)
    if names is None:
        processes = cast("ExecOps", box.given[ExecOps])
        skills = SkillExecutor(
            box.shelf, processes, given={Cages: caged.cages}, exec_for=caged.exec_for
        )
        executor = Routed([executor, skills, box.own, *box.servers])
    return Narrowed(Filtered(executor, capabilities), box.shelf, history)
