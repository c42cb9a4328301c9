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
    from evoclaw.orchestrator.channels.front_desk import FrontDesk
    from evoclaw.orchestrator.channels.letters import Channel
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.orchestrator.people.approvals import Approvals
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.orchestrator.sessions.sessions import Conversations
    from evoclaw.store.databases.database import Database
    from evoclaw.store.sessions.sessions import Session, StoredRun
    from evoclaw.store.sessions.sheets import StoredCanvases
    from evoclaw.wiring.gauges import GaugeReader
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.providing import Providers, Settle
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.store import Stored
    from evoclaw.workflows.workflows import Workflows

logger = logging.getLogger(__name__)
HOUR, DAY = 3_600.0, 86_400.0
GATHER = 3.0
"""Seconds to wait for known edges before interrupted runs are resumed."""
CANVAS = "the dashboard, beside the conversation"
"""Where the user sees the canvas of a session; the model quotes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brain:
    """Everything that starts, drives and answers runs in one process."""

    settings: EvoClawConfig
    home: Path
    stored: Stored
    orchestrator: Orchestrator
    agents: dict[str, Agent]
    """Changed in place when the settings are reloaded; active runs keep their agent."""
    governance: Governance
    providers: Providers
    equipment: RunFactory
    approvals: Approvals
    talks: Conversations
    runs: Runs
    memory: Memory | None
    workflows: Workflows
    desk: FrontDesk
    channels: Sequence[Channel]
    metrics: Metrics
    gauges: GaugeReader

    @property
    def default(self) -> Agent:
        """The agent of a run request that names none: the first one."""
        return next(iter(self.agents.values()))


@asynccontextmanager
async def open_brain(
    orchestrator: Orchestrator, stored: Stored, env: Mapping[str, str]
) -> AsyncGenerator[Brain]:
    """Build the runtime, resume unfinished runs, and serve until the block ends."""
    async with AsyncExitStack() as stack:
        brain = await _put_together(orchestrator, stored, env, stack)
        if brain.memory is not None:
            await stack.enter_async_context(brain.memory.serving())
        if await brain.runs.left_any():
            # Resumed runs repeat their open calls, so their edges must be known by then.
            known = [device.agent_id for device in stored.devices.all() if device.approved]
            await orchestrator.gather(known, GATHER)
        await stack.enter_async_context(brain.runs.serving())
        # A SQLite file belongs to this process alone, so leases of the previous process are free.
        alone = stored.database.dialect == "sqlite"
        await stack.enter_async_context(brain.workflows.serving(alone=alone))
        await stack.enter_async_context(brain.desk.serving())
        if days := brain.settings.store.keep_days:
            canvases = brain.equipment.canvases
            retention = asyncio.create_task(_forget(stored.database, days * DAY, canvases))
            stack.push_async_callback(_end, retention)
        yield brain


async def _forget(
    database: Database, seconds: float, canvases: CanvasFolder | StoredCanvases
) -> None:
    """Delete sessions past their retention time, now and every hour."""
    from evoclaw.store.databases.database import StoreError
    from evoclaw.store.sessions.retention import forget_sessions

    async def clear(tenant: str, session_id: str) -> None:
        await canvases.of(tenant, session_id).clear()

    while True:
        try:
            await forget_sessions(database, time.time() - seconds, clear)
        except (StoreError, OSError) as problem:
            logger.warning("retention failed, trying again in an hour: %s", problem)
        await asyncio.sleep(HOUR)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _put_together(
    orchestrator: Orchestrator, stored: Stored, env: Mapping[str, str], stack: AsyncExitStack
) -> Brain:
    from evoclaw.config.places import default_data_folder
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.definitions import agents_of
    from evoclaw.orchestrator.fleet.forwarding import forwarded_calls
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.wiring.gauges import GaugeReader
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.settings import orchestrator_settings

    settings, home = orchestrator_settings(env), default_data_folder(env)
    governance = await stack.enter_async_context(
        open_governance(env, keeps_on=True, ledger=stored.ledger, database=stored.database)
    )
    governance = replace(governance, forwarded=forwarded_calls(orchestrator.fleet))
    agents = dict(agents_of(settings))
    approvals = _approvals(settings, stored, env)
    flush = _settling(stored.database)
    providers = await _providers(env, stack, flush)
    run_factory = await _equipment(
        orchestrator, governance, providers, approvals, stored.database, flush, env, stack
    )
    memory = _memory(settings, stored, env)
    gauges = GaugeReader(orchestrator, stored.database, home, lambda: runs.live)
    metrics = Metrics(gauges.gauges())
    observers = _Ears(run_factory, memory, metrics)
    conversations = await _conversations(stored, agents, run_factory, observers, stack, env)
    runs = Runs(conversations, settings=settings.runs)
    workflows = _workflows(settings, stored, runs, conversations, run_factory)
    dispatcher, channels = _channels(settings, stored, runs, conversations, env)
    return Brain(
        settings=settings, home=home, stored=stored, orchestrator=orchestrator, agents=agents,
        governance=governance, providers=providers, equipment=run_factory, approvals=approvals,
        talks=conversations, runs=runs, memory=memory, workflows=workflows, desk=dispatcher,
        channels=channels, metrics=metrics, gauges=gauges,
    )  # fmt: skip


def _approvals(settings: EvoClawConfig, stored: Stored, env: Mapping[str, str]) -> Approvals:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import Approvals

    redactor = Redactor(secrets_in(env))
    return Approvals(stored.approvals, approval_settings(settings), redactor=redactor)


def approval_settings(settings: EvoClawConfig) -> ApprovalSettings:
    """A run of the service waits for an approval, unless the settings say otherwise."""
    approvals = settings.approvals
    return structs.replace(approvals, nobody="wait") if approvals.nobody is None else approvals


def _canvases(database: Database, env: Mapping[str, str]) -> CanvasFolder | StoredCanvases:
    """The canvases of sessions: in a shared PostgreSQL, or in a folder beside SQLite."""
    from evoclaw.store.sessions.sheets import StoredCanvases
    from evoclaw.wiring.conversations import canvas_folder

    if database.dialect == "sqlite":
        return canvas_folder(env, CANVAS)
    return StoredCanvases(database, CANVAS)


def _settling(database: Database) -> Settle:
    async def flush() -> None:
        await database.write(lambda connection: None)

    return flush


async def _providers(env: Mapping[str, str], stack: AsyncExitStack, settle: Settle) -> Providers:
    from evoclaw.providers.http import Http
    from evoclaw.wiring.models import model_at_hand
    from evoclaw.wiring.providing import Providers

    http = await stack.enter_async_context(Http())
    default, _ = await model_at_hand(env)
    return Providers(http, env, default, stack, settle)


async def _equipment(
    orchestrator: Orchestrator,
    governance: Governance,
    providers: Providers,
    approvals: Approvals,
    database: Database,
    settle: Settle,
    env: Mapping[str, str],
    stack: AsyncExitStack,
) -> RunFactory:
    from evoclaw.config.places import default_data_folder
    from evoclaw.wiring.receipts import open_signer
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.toolbox import open_toolbox

    home = default_data_folder(env)
    workspace = home / "desk"
    workspace.mkdir(parents=True, exist_ok=True, mode=0o700)
    toolbox = await stack.enter_async_context(open_toolbox(workspace, env, key="up"))
    signer = await stack.enter_async_context(open_signer(env, database=database))
    return RunFactory(
        orchestrator, providers, governance, approvals.approver, toolbox, signer, settle,
        _canvases(database, env),
    )  # fmt: skip


def _memory(settings: EvoClawConfig, stored: Stored, env: Mapping[str, str]) -> Memory | None:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.store.memory import MemoryStore

    if not settings.memory.enabled:
        return None
    return Memory(MemoryStore(stored.database), settings.memory, Redactor(secrets_in(env)))


@dataclass(frozen=True, slots=True)
class _Ears:
    """The sinks of a run, and what its agent remembers."""

    equipment: RunFactory
    memory: Memory | None
    metrics: Metrics

    def sinks(self, session: Session, records: Sequence[Record]) -> Sequence[Sink]:
        """The audit, the traces, the metrics and the memory."""
        principal = Principal(session.tenant, session.owner, session.agent)
        governance = self.equipment.governance
        sinks = [
            *governance.sinks(session.id, records, principal),
            self.metrics.sink(session.agent),
        ]
        return sinks if self.memory is None else [*sinks, self.memory.sink(session, records)]

    async def recall(self, agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
        """The notes in memory that may matter for a run."""
        return () if self.memory is None else await self.memory.recall(session, run.asked)


async def _conversations(
    stored: Stored,
    agents: Mapping[str, Agent],
    equipment: RunFactory,
    ears: _Ears,
    stack: AsyncExitStack,
    env: Mapping[str, str],
) -> Conversations:
    from evoclaw.orchestrator.agents.prompt import agent_prompt
    from evoclaw.orchestrator.people.questions import Questions
    from evoclaw.orchestrator.sessions.sessions import Conversations
    from evoclaw.orchestrator.sessions.subruns import Limits
    from evoclaw.wiring.providing import price_of_any

    governance, fleet = equipment.governance, equipment.orchestrator.fleet
    settings, skills = governance.settings, equipment.box.shelf.skills

    def prompt(agent: Agent) -> str:
        return agent_prompt(agent, skills=skills(), peers=agents)

    return Conversations(
        stored.sessions,
        agents,
        equipment.ports,
        questions=Questions(stored.sessions.questions, parks=True),
        limits=Limits(budget=settings.budget),
        ledger=governance.ledger,
        price=price_of_any(),
        cheaper=[equipment.providers.of(name) for name in settings.orchestrator.cheaper_models],
        attended=True,
        listening=ears.sinks,
        edges=fleet.members,
        prompt=prompt,
        recall=ears.recall,
        approvals=stored.approvals,
        together=True,
    )


def _workflows(
    settings: EvoClawConfig,
    stored: Stored,
    runs: Runs,
    talks: Conversations,
    equipment: RunFactory,
) -> Workflows:
    from evoclaw.store.workflows.workflows import WorkflowStore
    from evoclaw.wiring.steps import AgentSteps, ToolSteps
    from evoclaw.workflows.catalogue import Catalogue
    from evoclaw.workflows.workflows import Workflows

    def default() -> Agent:
        return next(iter(talks.agents.values()))

    return Workflows(
        WorkflowStore(stored.database),
        Catalogue(settings.data / "workflows"),
        AgentSteps(runs, talks),
        ToolSteps(runs, default, equipment.tools),
        settings=settings.workflows,
    )


def _channels(
    settings: EvoClawConfig,
    stored: Stored,
    runs: Runs,
    talks: Conversations,
    env: Mapping[str, str],
) -> tuple[FrontDesk, Sequence[Channel]]:
    from evoclaw.orchestrator.channels.front_desk import FrontDesk
    from evoclaw.orchestrator.channels.opening import open_channels
    from evoclaw.store.channels import ChannelStore
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.wiring.fleet import find_broker

    channels = open_channels(
        settings.channels, env, lambda: MqttLink(find_broker(settings.data, env))
    )
    patience = {channel.name: channel.patience_s for channel in settings.channels}
    store = ChannelStore(stored.database)
    return FrontDesk(store, runs, talks, channels, patience=patience), channels
