"""Builds the sessions of `evoclaw run --session`, whose runs may start sub-runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.history import History
from evoclaw.core.labels import Principal
from evoclaw.core.pipeline import Pipeline, Step
from evoclaw.core.ports import Approver, Policy, Ports, Provider, Sink
from evoclaw.orchestrator.agents.definitions import DEFAULT_AGENT
from evoclaw.providers.registry import open_provider
from evoclaw.tools.question import UserPrompter
from evoclaw.wiring.local_run import capabilities_for_level
from evoclaw.wiring.model_tools import model_steps
from evoclaw.wiring.settings import model_for_run, provider_options
from evoclaw.wiring.toolbox import (
    open_toolbox,
    toolbox_routes,
    vision_dependency,
    with_dependencies,
)

if TYPE_CHECKING:
    from evoclaw.core.events import Record
    from evoclaw.core.ledgers import Ledger
    from evoclaw.executors.call_steps import Sign
    from evoclaw.executors.canvases import CanvasFolder
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.budget.cost_estimator import Price
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.orchestrator.sessions.session_run import RunLimits
    from evoclaw.store.sessions.sessions import Session
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.toolbox import Toolbox


@asynccontextmanager
async def open_conversations(
    *,
    model: str | None,
    workspace: Path,
    level: Level,
    tools: Sequence[str] | None,
    approver: Callable[[str], Approver],
    person: UserPrompter | None,
    settings: LoopSettings,
    session: str,
    attended: bool,
    env: Mapping[str, str],
    undoable: bool = True,
) -> AsyncGenerator[Conversations]:
    """The sessions of this machine, with one agent; the named session exists when this returns.

    Unless their runs are `undoable`, nothing is kept of the files that they change.
    """
    from evoclaw.orchestrator.agents.prompt import system_prompt
    from evoclaw.orchestrator.people.questions import Questions
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.skills.disclosure import skill_list
    from evoclaw.wiring.before_images import keep_changes
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.receipts import open_signer
    from evoclaw.wiring.store import open_sessions
    from evoclaw.wiring.workspace import workspace_messages

    name = await model_for_run(model, env)
    capabilities = capabilities_for_level(level, env)
    agent = Agent(DEFAULT_AGENT, name, capabilities=capabilities, settings=settings)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(open_governance(env, DEFAULT_AGENT))
        store = await stack.enter_async_context(open_sessions(env))
        options = provider_options(governance.settings)
        provider = await stack.enter_async_context(open_provider(name, env, options))
        toolbox = await stack.enter_async_context(
            open_toolbox(workspace, env, key=session, dependencies=vision_dependency(provider))
        )
        signer = await stack.enter_async_context(open_signer(env))
        tools_here = _pipeline(toolbox, None, capabilities, governance.steps()).tools
        undo_steps = await keep_changes(str(workspace), env, stack) if undoable else []
        rules = governance.rules(level, capabilities, workspace, tools_here)
        steps = [*model_steps(provider.model, tools), *governance.steps(), *undo_steps]
        factory = _LocalRunFactory(
            provider, steps, signer, rules, approver, toolbox, tools,
            has_person=person is not None, canvases=canvas_folder(env),
        )  # fmt: skip
        conversations = Conversations(
            store,
            {DEFAULT_AGENT: agent},
            factory.ports,
            questions=Questions(store.questions, local_person=person),
            prompt=lambda _: system_prompt(workspace, skill_list(toolbox.skill_registry.skills())),
            workspace_text=lambda: workspace_messages(workspace, env),
            **await _governance_arguments(governance, name, env, stack, attended=attended),
        )
        await conversations.open(DEFAULT_AGENT, session_id=session)
        yield conversations


def canvas_folder(env: Mapping[str, str]) -> CanvasFolder:
    """The canvases of the sessions that this user runs in a terminal, as files for a browser."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.executors.canvases import CanvasFolder

    return CanvasFolder(default_data_folder(env) / "canvas")


class _GovernanceArguments(TypedDict):
    limits: RunLimits
    ledger: Ledger
    price: Price
    cheaper: Sequence[Provider]
    attended: bool
    sinks_for: Callable[[Session, Sequence[Record]], Sequence[Sink]]


async def _governance_arguments(
    governance: Governance,
    model: str,
    env: Mapping[str, str],
    stack: AsyncExitStack,
    *,
    attended: bool,
) -> _GovernanceArguments:
    """What limits sessions, and the sinks of their runs."""
    from evoclaw.orchestrator.sessions.session_run import RunLimits
    from evoclaw.wiring.budget import price_for

    names = governance.settings.orchestrator.cheaper_models
    options = provider_options(governance.settings)
    return _GovernanceArguments(
        limits=RunLimits(budget=governance.settings.budget),
        ledger=governance.ledger,
        price=price_for(model),
        cheaper=[
            await stack.enter_async_context(open_provider(cheaper, env, options))
            for cheaper in names
        ],
        attended=attended,
        sinks_for=lambda session, records: governance.sinks(
            session.id, records, Principal(session.tenant, session.owner, session.agent)
        ),
    )


def _pipeline(
    toolbox: Toolbox,
    names: Sequence[str] | None,
    capabilities: frozenset[str],
    steps: Sequence[Step],
) -> Pipeline:
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.wiring.pipelines import local_pipeline

    return local_pipeline().build(
        toolbox_routes(toolbox, names), [PermittedTools(capabilities), *steps]
    )


@dataclass(frozen=True, slots=True)
class _LocalRunFactory:
    """Builds provider, call pipeline and approver of each run of a session."""

    provider: Provider
    steps: Sequence[Step]
    sign: Sign
    rules: tuple[Policy, ...]
    """Shared by all sessions: a rate counts the calls of all of them."""
    approver: Callable[[str], Approver]
    toolbox: Toolbox
    tools: Sequence[str] | None
    has_person: bool
    canvases: CanvasFolder

    def ports(self, agent: Agent, session: Session, dependencies: Mapping[type, object]) -> Ports:
        """The parts of one run."""
        from evoclaw.core.canvases import Canvas
        from evoclaw.executors.call_steps import SignReceipt
        from evoclaw.skills.active import ActiveSkillTools

        injected = dict(dependencies)
        injected[Canvas] = self.canvases.of(session.tenant, session.id)
        history = cast("History", injected.pop(History))
        if not self.has_person:
            injected.pop(UserPrompter)  # without a user, the question tool is not offered
        toolbox = with_dependencies(self.toolbox, injected)
        own = [
            ActiveSkillTools(toolbox.skill_registry, history),
            SignReceipt(self.sign),
            *self.steps,
        ]
        pipeline = _pipeline(toolbox, self.tools, agent.capabilities, [*own, *self.rules])
        principal = Principal(agent=agent.name)
        approver = self.approver(session.id)
        return Ports(self.provider, pipeline, pipeline.policy, approver, principal)
