"""Builds a run on this machine: its model, its tools, its rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.ports import Approver, Ports

if TYPE_CHECKING:
    from evoclaw.core.state import PreparedRun
    from evoclaw.governance.autonomy import Level


@asynccontextmanager
async def local_ports(
    *,
    model: str | None,
    workspace: Path,
    level: Level,
    tools: Sequence[str] | None,
    approver: Approver,
    env: Mapping[str, str],
    run: PreparedRun,
    dependencies: Mapping[type, object] | None = None,
    undoable: bool = True,
    genome: Genome = CONFIGURED,
) -> AsyncGenerator[Ports]:
    """The ports of a run on this machine; closed, with every process, when the block ends.

    Unless it is `undoable`, nothing is kept of the files that it changes. `genome` orders its
    models, describes its tools and has its skills.
    """
    from evoclaw.executors.call_steps import SignReceipt
    from evoclaw.orchestrator.agents.tuning import ordered_models
    from evoclaw.providers.registry import open_provider
    from evoclaw.skills.active import ActiveSkillTools
    from evoclaw.skills.disclosure import RegistrySkillReader
    from evoclaw.skills.tuned import TunedSkills
    from evoclaw.tools.skill import SkillReader
    from evoclaw.wiring.before_images import keep_changes
    from evoclaw.wiring.genome_steps import genome_steps
    from evoclaw.wiring.governance import governed_ports, open_governance
    from evoclaw.wiring.model_tools import model_steps
    from evoclaw.wiring.receipts import open_signer
    from evoclaw.wiring.settings import model_for_run, provider_options
    from evoclaw.wiring.toolbox import (
        open_toolbox,
        toolbox_routes,
        vision_dependency,
        with_dependencies,
    )

    capabilities = capabilities_for_level(level, env)
    name = ordered_models(await model_for_run(model, env), genome.models)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(open_governance(env))
        options = provider_options(governance.settings)
        provider = await stack.enter_async_context(open_provider(name, env, options))
        injected = {**vision_dependency(provider), **(dependencies or {})}
        toolbox = await stack.enter_async_context(
            open_toolbox(workspace, env, dependencies=injected)
        )
        skills = TunedSkills(toolbox.skill_registry, genome)
        if genome.digest:
            toolbox = with_dependencies(toolbox, {SkillReader: RegistrySkillReader(skills)})
        state = run.state
        history = state.history if state.started else state.opening
        signer = await stack.enter_async_context(open_signer(env))
        undo_steps = await keep_changes(str(workspace), env, stack) if undoable else []
        yield await stack.enter_async_context(
            governed_ports(
                governance,
                provider=provider,
                model=name,
                routes=toolbox_routes(toolbox, tools),
                steps=[
                    *model_steps(provider.model, tools),
                    ActiveSkillTools(skills, history),
                    *genome_steps(genome, toolbox.skill_registry),
                    SignReceipt(signer),
                    *undo_steps,
                ],
                approver=approver,
                level=level,
                capabilities=capabilities,
                workspace=workspace,
                run=run,
                env=env,
            )
        )


def capabilities_for_level(level: Level, env: Mapping[str, str]) -> frozenset[str]:
    """The capabilities of an agent that is defined by its autonomy level only.

    Never more than `permissions` grants, and none if the tool loop is disabled.
    """
    from evoclaw.core.agent import intersect_capabilities
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env).orchestrator
    if not settings.tool_loop_enabled:
        return frozenset()
    held, granted = level.capabilities, settings.tools.granted
    return held if granted is None else intersect_capabilities(held, granted)
