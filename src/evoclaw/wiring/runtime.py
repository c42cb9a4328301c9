"""Builds the runtime of the service: agents, durable runs, workflows, channels and memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from evoclaw.config import EvoClawConfig
    from evoclaw.core.agent import Agent
    from evoclaw.evolution.evaluation_service import EvaluationService
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.executors.call_steps import Sign
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.orchestrator.channels.dispatcher import Channel, ChannelDispatcher
    from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
    from evoclaw.orchestrator.notifications.service import Notifications
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.orchestrator.overview.gauges import GaugeReader
    from evoclaw.orchestrator.people.approvals import CallApprovals
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.campaigns import CampaignParts
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.store import Stores
    from evoclaw.wiring.toolbox import Toolbox
    from evoclaw.workflows.workflows import Workflows

EDGE_GATHER_TIMEOUT_S = 3.0
"""Seconds to wait for known edges before interrupted runs are resumed."""
CANVAS_LOCATION = "the dashboard, beside the conversation"
"""Where the user sees the canvas of a session; the model quotes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Everything that starts, drives and answers runs in one process."""

    settings: EvoClawConfig
    home: Path
    stores: Stores
    orchestrator: Orchestrator
    agents: dict[str, Agent]
    """Changed in place when the settings are reloaded; active runs keep their agent."""
    governance: Governance
    providers: ProviderCache
    run_factory: RunFactory
    approvals: CallApprovals
    conversations: Conversations
    runs: Runs
    memory: Memory | None
    workflows: Workflows
    channel_dispatcher: ChannelDispatcher
    channels: Sequence[Channel]
    notifications: Notifications
    metrics: Metrics
    gauges: GaugeReader
    genomes: GenomeLineage
    evaluations: EvaluationService
    genome_rollouts: GenomeRollouts

    @property
    def default_agent(self) -> Agent:
        """The agent of a run request that names none: the first one."""
        return next(iter(self.agents.values()))


@asynccontextmanager
async def open_runtime(
    orchestrator: Orchestrator,
    stores: Stores,
    env: Mapping[str, str],
    workspace: Path | None = None,
) -> AsyncGenerator[Runtime]:
    """Build the runtime, resume unfinished runs, and serve until the block ends.

    Args:
        orchestrator: The fleet.
        stores: The opened stores.
        env: The environment of the service.
        workspace: The folder that skills, own tools and MCP servers of this machine work in; None
            is a folder of the service's own.
    """
    from evoclaw.orchestrator.sessions.retention import SessionRetention
    from evoclaw.wiring.campaigns import serving_evolution

    async with AsyncExitStack() as stack:
        runtime = await _build_runtime(orchestrator, stores, env, stack, workspace)
        if runtime.memory is not None:
            await stack.enter_async_context(runtime.memory.serving())
        if await runtime.runs.has_unfinished():
            # Resumed runs repeat their open calls, so their edges must be known by then.
            known = [device.agent_id for device in stores.devices.all() if device.approved]
            await orchestrator.wait_for_all(known, EDGE_GATHER_TIMEOUT_S)
        await stack.enter_async_context(runtime.runs.serving())
        # A SQLite file belongs to this process alone, so leases of the previous process are free.
        alone = stores.database.dialect == "sqlite"
        await stack.enter_async_context(runtime.workflows.serving(alone=alone))
        await stack.enter_async_context(runtime.evaluations.serving(alone=alone))
        await stack.enter_async_context(runtime.genome_rollouts.serving(alone=alone))
        await stack.enter_async_context(runtime.channel_dispatcher.serving())
        await stack.enter_async_context(runtime.notifications.serving())
        retention = SessionRetention(
            stores.database, runtime.run_factory.canvases, runtime.settings.store.keep_days
        )
        await stack.enter_async_context(retention.serving())
        await stack.enter_async_context(serving_evolution(lambda: campaign_parts(runtime, env)))
        yield runtime


def campaign_parts(runtime: Runtime, env: Mapping[str, str]) -> CampaignParts:
    """What the evolution of the agents is built from, as the settings are now."""
    from evoclaw.wiring.campaigns import CampaignParts

    run_factory = runtime.run_factory
    return CampaignParts(
        env=env, database=runtime.stores.database, agents=runtime.agents, lineage=runtime.genomes,
        governance=run_factory.governance, provider=runtime.providers.get,
        skills=run_factory.toolbox.skill_registry,
        tools=lambda name: run_factory.tools(runtime.agents[name]),
    )  # fmt: skip


async def _build_runtime(
    orchestrator: Orchestrator,
    stores: Stores,
    env: Mapping[str, str],
    stack: AsyncExitStack,
    workspace: Path | None,
) -> Runtime:
    from evoclaw.config.paths import default_data_folder
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.definitions import agents_of
    from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls, only_reads
    from evoclaw.orchestrator.overview.gauges import GaugeReader
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.store.sessions.canvases import StoredCanvases
    from evoclaw.wiring.channels import open_channels
    from evoclaw.wiring.evaluation import evaluation_service
    from evoclaw.wiring.evolution import genome_lineage, genome_rollouts
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.notifications import open_notifications
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.settings import orchestrator_settings

    settings, home = orchestrator_settings(env), default_data_folder(env)
    governance = await stack.enter_async_context(
        open_governance(env, long_running=True, ledger=stores.ledger, database=stores.database)
    )
    governance = replace(
        governance,
        forwarded=forwarded_calls(orchestrator.fleet),
        only_reads=only_reads(orchestrator.fleet),
    )
    agents = dict(agents_of(settings.agents, settings.run_defaults))
    approvals = _approvals(settings, stores, env)
    providers = await _providers(settings, env, stack, stores.database)
    memory = _memory(settings, stores, env)
    gauges = GaugeReader(orchestrator, stores.database, home, lambda: runs.active_count)
    metrics = Metrics(gauges.gauges())
    toolbox, signer = await _toolbox_and_signer(workspace or home / "desk", stores, env, stack)
    run_factory = RunFactory(
        orchestrator, providers, governance, approvals.approver, toolbox, signer,
        stores.database.flush, StoredCanvases(stores.database, CANVAS_LOCATION), memory, metrics,
    )  # fmt: skip
    genomes = genome_lineage(stores.database, home, agents, run_factory)
    rollouts = genome_rollouts(stores.database, orchestrator, genomes, governance.audit, env)
    conversations = _conversations(stores, agents, run_factory, genomes)
    runs = Runs(conversations, settings=settings.runs)
    workflows = _workflows(settings, stores, runs, conversations, run_factory, approvals)
    dispatcher, channels = await open_channels(
        settings, stores, runs, conversations, approvals,
        lambda name: run_factory.image_problem(agents.get(name, next(iter(agents.values())))), env,
    )  # fmt: skip
    notifications = await open_notifications(
        settings, stores, runs, conversations, approvals, workflows, env
    )
    return Runtime(
        settings=settings, home=home, stores=stores, orchestrator=orchestrator, agents=agents,
        governance=governance, providers=providers, run_factory=run_factory, approvals=approvals,
        conversations=conversations, runs=runs, memory=memory, workflows=workflows,
        channel_dispatcher=dispatcher, channels=channels, notifications=notifications,
        metrics=metrics, gauges=gauges, genomes=genomes, genome_rollouts=rollouts,
        evaluations=evaluation_service(stores.database, genomes, run_factory, env),
    )  # fmt: skip


def _approvals(settings: EvoClawConfig, stores: Stores, env: Mapping[str, str]) -> CallApprovals:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import CallApprovals

    redactor = Redactor(secrets_in(env))
    return CallApprovals(stores.approvals, settings.approvals.for_service(), redactor=redactor)


async def _providers(
    settings: EvoClawConfig, env: Mapping[str, str], stack: AsyncExitStack, database: Database
) -> ProviderCache:
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.providers.http import Http
    from evoclaw.providers.registry import find_model
    from evoclaw.wiring.settings import provider_options

    http = await stack.enter_async_context(Http())
    default, problem = await find_model(env)
    options = provider_options(settings)
    return ProviderCache(
        http, env, default, stack, database.flush, no_model=problem, options=options
    )


async def _toolbox_and_signer(
    workspace: Path, stores: Stores, env: Mapping[str, str], stack: AsyncExitStack
) -> tuple[Toolbox, Sign]:
    from evoclaw.orchestrator.fleet.edge_routes import orchestrator_tool_names
    from evoclaw.wiring.receipts import open_signer
    from evoclaw.wiring.skills import skills_folder
    from evoclaw.wiring.toolbox import open_toolbox

    # A sandbox shows its commands the folders that exist when it is built.
    for folder in (workspace, skills_folder(env)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The tools of a machine run on edges: the service does not load them.
    names = orchestrator_tool_names()
    toolbox = await stack.enter_async_context(open_toolbox(workspace, env, key="up", names=names))
    return toolbox, await stack.enter_async_context(open_signer(env, database=stores.database))


def _memory(settings: EvoClawConfig, stores: Stores, env: Mapping[str, str]) -> Memory | None:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.store.memory import MemoryStore

    if not settings.memory.enabled:
        return None
    return Memory(MemoryStore(stores.database), settings.memory, Redactor(secrets_in(env)))


def _conversations(
    stores: Stores, agents: Mapping[str, Agent], run_factory: RunFactory, genomes: GenomeLineage
) -> Conversations:
    from evoclaw.orchestrator.agents.prompt import agent_prompt
    from evoclaw.orchestrator.people.questions import Questions
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.orchestrator.sessions.session_run import RunLimits
    from evoclaw.skills.tuned import TunedSkills
    from evoclaw.wiring.budget import price_of_any_model

    governance, fleet = run_factory.governance, run_factory.orchestrator.fleet
    settings, registry = governance.settings, run_factory.toolbox.skill_registry

    def prompt(agent: Agent) -> str:
        skills = TunedSkills(registry, agent.genome).skills()
        return agent_prompt(agent, skills=skills, peers=agents)

    return Conversations(
        stores.sessions,
        agents,
        run_factory.ports,
        questions=Questions(stores.sessions.questions, suspends_runs=True),
        limits=RunLimits(budget=settings.budget),
        ledger=governance.ledger,
        price=price_of_any_model(),
        cheaper=[run_factory.providers.get(name) for name in settings.orchestrator.cheaper_models],
        attended=True,
        sinks_for=run_factory.sinks,
        edges=fleet.members,
        prompt=prompt,
        recall=run_factory.recall,
        approvals=stores.approvals,
        defer_commits=True,
        genomes=genomes,
    )


def _workflows(
    settings: EvoClawConfig,
    stores: Stores,
    runs: Runs,
    conversations: Conversations,
    run_factory: RunFactory,
    approvals: CallApprovals,
) -> Workflows:
    from evoclaw.store.workflows.workflows import WorkflowStore
    from evoclaw.wiring.workflow_steps import AgentSteps, ToolSteps
    from evoclaw.workflows.catalogue import Catalogue
    from evoclaw.workflows.workflows import Workflows

    def default() -> Agent:
        return next(iter(conversations.agents.values()))

    workflows = Workflows(
        WorkflowStore(stores.database),
        Catalogue(settings.data / "workflows"),
        AgentSteps(runs, conversations),
        ToolSteps(runs, default, run_factory.tools),
        settings=settings.workflows,
        approved_by=approvals.step_approver,
    )
    runs.on_continued(workflows.wake)
    return workflows
