"""Builds the runtime of the service: agents, durable runs, workflows, channels and memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from evoclaw.core.labels import Principal

if TYPE_CHECKING:
    from pathlib import Path

    from evoclaw.config import EvoClawConfig
    from evoclaw.core.agent import Agent
    from evoclaw.core.events import Record
    from evoclaw.core.messages import Message
    from evoclaw.core.ports import Sink
    from evoclaw.executors.canvases import CanvasFolder
    from evoclaw.governance.approvals import ApprovalSettings
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.orchestrator.channels.dispatcher import Channel, ChannelDispatcher
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.orchestrator.people.approvals import CallApprovals
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.store.databases.database import Database
    from evoclaw.store.sessions.canvases import StoredCanvases
    from evoclaw.store.sessions.sessions import Session, StoredRun
    from evoclaw.wiring.gauges import GaugeReader
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.providers import Flush, ProviderCache
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.store import Stores
    from evoclaw.workflows.workflows import Workflows

logger = logging.getLogger(__name__)
RETENTION_INTERVAL_S, DAY_S = 3_600.0, 86_400.0
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
    metrics: Metrics
    gauges: GaugeReader

    @property
    def default_agent(self) -> Agent:
        """The agent of a run request that names none: the first one."""
        return next(iter(self.agents.values()))


@asynccontextmanager
async def open_runtime(
    orchestrator: Orchestrator, stores: Stores, env: Mapping[str, str]
) -> AsyncGenerator[Runtime]:
    """Build the runtime, resume unfinished runs, and serve until the block ends."""
    async with AsyncExitStack() as stack:
        brain = await _build_runtime(orchestrator, stores, env, stack)
        if brain.memory is not None:
            await stack.enter_async_context(brain.memory.serving())
        if await brain.runs.has_unfinished():
            # Resumed runs repeat their open calls, so their edges must be known by then.
            known = [device.agent_id for device in stores.devices.all() if device.approved]
            await orchestrator.wait_for_all(known, EDGE_GATHER_TIMEOUT_S)
        await stack.enter_async_context(brain.runs.serving())
        # A SQLite file belongs to this process alone, so leases of the previous process are free.
        alone = stores.database.dialect == "sqlite"
        await stack.enter_async_context(brain.workflows.serving(alone=alone))
        await stack.enter_async_context(brain.channel_dispatcher.serving())
        if days := brain.settings.store.keep_days:
            canvases = brain.run_factory.canvases
            retention = asyncio.create_task(_run_retention(stores.database, days * DAY_S, canvases))
            stack.push_async_callback(_cancel_task, retention)
        yield brain


async def _run_retention(
    database: Database, max_age_s: float, canvases: CanvasFolder | StoredCanvases
) -> None:
    """Delete sessions past their retention time, now and every hour."""
    from evoclaw.store.databases.database import StoreError
    from evoclaw.store.sessions.deletion import delete_expired_sessions

    async def clear(tenant: str, session_id: str) -> None:
        await canvases.of(tenant, session_id).clear()

    while True:
        try:
            await delete_expired_sessions(database, time.time() - max_age_s, clear)
        except (StoreError, OSError) as problem:
            logger.warning("retention failed, trying again in an hour: %s", problem)
        await asyncio.sleep(RETENTION_INTERVAL_S)


async def _cancel_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _build_runtime(
    orchestrator: Orchestrator, stores: Stores, env: Mapping[str, str], stack: AsyncExitStack
) -> Runtime:
    from evoclaw.config.paths import default_data_folder
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.definitions import agents_of
    from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.wiring.gauges import GaugeReader
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.settings import orchestrator_settings

    settings, home = orchestrator_settings(env), default_data_folder(env)
    governance = await stack.enter_async_context(
        open_governance(env, long_running=True, ledger=stores.ledger, database=stores.database)
    )
    governance = replace(governance, forwarded=forwarded_calls(orchestrator.fleet))
    agents = dict(agents_of(settings.agents, settings.run_defaults))
    approvals = _approvals(settings, stores, env)
    flush = _flush_of(stores.database)
    providers = await _providers(env, stack, flush)
    run_factory = await _run_factory(
        orchestrator, governance, providers, approvals, stores.database, flush, env, stack
    )
    memory = _memory(settings, stores, env)
    gauges = GaugeReader(orchestrator, stores.database, home, lambda: runs.active_count)
    metrics = Metrics(gauges.gauges())
    observers = _RunObservers(run_factory, memory, metrics)
    conversations = await _conversations(stores, agents, run_factory, observers, stack, env)
    runs = Runs(conversations, settings=settings.runs)
    workflows = _workflows(settings, stores, runs, conversations, run_factory)
    dispatcher, channels = _channels(settings, stores, runs, conversations, env)
    return Runtime(
        settings=settings, home=home, stores=stores, orchestrator=orchestrator, agents=agents,
        governance=governance, providers=providers, run_factory=run_factory, approvals=approvals,
        conversations=conversations, runs=runs, memory=memory, workflows=workflows, channel_dispatcher=dispatcher,
        channels=channels, metrics=metrics, gauges=gauges,
    )  # fmt: skip


def _approvals(settings: EvoClawConfig, stores: Stores, env: Mapping[str, str]) -> CallApprovals:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import CallApprovals

    redactor = Redactor(secrets_in(env))
    return CallApprovals(stores.approvals, approval_settings(settings), redactor=redactor)


def approval_settings(settings: EvoClawConfig) -> ApprovalSettings:
    """A run of the service waits for an approval, unless the settings say otherwise."""
    approvals = settings.approvals
    return structs.replace(approvals, nobody="wait") if approvals.nobody is None else approvals


def _canvases(database: Database, env: Mapping[str, str]) -> CanvasFolder | StoredCanvases:
    """The canvases of sessions: in a shared PostgreSQL, or in a folder beside SQLite."""
    from evoclaw.store.sessions.canvases import StoredCanvases
    from evoclaw.wiring.local_sessions import canvas_folder

    if database.dialect == "sqlite":
        return canvas_folder(env, CANVAS_LOCATION)
    return StoredCanvases(database, CANVAS_LOCATION)


def _flush_of(database: Database) -> Flush:
    async def flush() -> None:
        await database.write(lambda connection: None)

    return flush


async def _providers(env: Mapping[str, str], stack: AsyncExitStack, flush: Flush) -> ProviderCache:
    from evoclaw.providers.http import Http
    from evoclaw.wiring.models import find_model
    from evoclaw.wiring.providers import ProviderCache

    http = await stack.enter_async_context(Http())
    default, _ = await find_model(env)
    return ProviderCache(http, env, default, stack, flush)


async def _run_factory(
    orchestrator: Orchestrator,
    governance: Governance,
    providers: ProviderCache,
    approvals: CallApprovals,
    database: Database,
    flush: Flush,
    env: Mapping[str, str],
    stack: AsyncExitStack,
) -> RunFactory:
    from evoclaw.config.paths import default_data_folder
    from evoclaw.wiring.receipts import open_signer
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.toolbox import open_toolbox

    home = default_data_folder(env)
    workspace = home / "desk"
    workspace.mkdir(parents=True, exist_ok=True, mode=0o700)
    toolbox = await stack.enter_async_context(open_toolbox(workspace, env, key="up"))
    signer = await stack.enter_async_context(open_signer(env, database=database))
    return RunFactory(
        orchestrator, providers, governance, approvals.approver, toolbox, signer, flush,
        _canvases(database, env),
    )  # fmt: skip


def _memory(settings: EvoClawConfig, stores: Stores, env: Mapping[str, str]) -> Memory | None:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.store.memory import MemoryStore

    if not settings.memory.enabled:
        return None
    return Memory(MemoryStore(stores.database), settings.memory, Redactor(secrets_in(env)))


@dataclass(frozen=True, slots=True)
class _RunObservers:
    """The sinks of a run, and what its agent remembers."""

    run_factory: RunFactory
    memory: Memory | None
    metrics: Metrics

    def sinks(self, session: Session, records: Sequence[Record]) -> Sequence[Sink]:
        """The audit, the traces, the metrics and the memory."""
        principal = Principal(session.tenant, session.owner, session.agent)
        governance = self.run_factory.governance
        sinks = [
            *governance.sinks(session.id, records, principal),
            self.metrics.sink(session.agent),
        ]
        return sinks if self.memory is None else [*sinks, self.memory.sink(session, records)]

    async def recall(self, agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
        """The notes in memory that may matter for a run."""
        return () if self.memory is None else await self.memory.recall(session, run.message)


async def _conversations(
    stores: Stores,
    agents: Mapping[str, Agent],
    run_factory: RunFactory,
    observers: _RunObservers,
    stack: AsyncExitStack,
    env: Mapping[str, str],
) -> Conversations:
    from evoclaw.orchestrator.agents.prompt import agent_prompt
    from evoclaw.orchestrator.people.questions import Questions
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.orchestrator.sessions.subruns import RunLimits
    from evoclaw.wiring.providers import price_of_any_model

    governance, fleet = run_factory.governance, run_factory.orchestrator.fleet
    settings, skills = governance.settings, run_factory.toolbox.skill_registry.skills

    def prompt(agent: Agent) -> str:
        return agent_prompt(agent, skills=skills(), peers=agents)

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
        sinks_for=observers.sinks,
        edges=fleet.members,
        prompt=prompt,
        recall=observers.recall,
        approvals=stores.approvals,
        defer_commits=True,
    )


def _workflows(
    settings: EvoClawConfig,
    stores: Stores,
    runs: Runs,
    conversations: Conversations,
    run_factory: RunFactory,
) -> Workflows:
    from evoclaw.store.workflows.workflows import WorkflowStore
    from evoclaw.wiring.workflow_steps import AgentSteps, ToolSteps
    from evoclaw.workflows.catalogue import Catalogue
    from evoclaw.workflows.workflows import Workflows

    def default() -> Agent:
        return next(iter(conversations.agents.values()))

    return Workflows(
        WorkflowStore(stores.database),
        Catalogue(settings.data / "workflows"),
        AgentSteps(runs, conversations),
        ToolSteps(runs, default, run_factory.tools),
        settings=settings.workflows,
    )


def _channels(
    settings: EvoClawConfig,
    stores: Stores,
    runs: Runs,
    conversations: Conversations,
    env: Mapping[str, str],
) -> tuple[ChannelDispatcher, Sequence[Channel]]:
    from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher
    from evoclaw.orchestrator.channels.factory import build_channels
    from evoclaw.store.channels import ChannelStore
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.wiring.fleet import find_broker

    channels = build_channels(
        settings.channels, env, lambda: MqttLink(find_broker(settings.data, env))
    )
    patience = {channel.name: channel.patience_s for channel in settings.channels}
    store = ChannelStore(stores.database)
    return ChannelDispatcher(
        store, runs, conversations, channels, delivery_timeouts_s=patience
    ), channels
