"""The orchestrator that stays: its agents, their durable runs, workflows, channels and memory."""

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
"""Seconds for which edges are waited for before runs that were cut off go on."""
CANVAS = "the page, beside the conversation"
"""Where to look at what a session shows: for the model to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brain:
    """Everything that answers, and what it answers with."""

    settings: EvoClawConfig
    home: Path
    stored: Stored
    orchestrator: Orchestrator
    agents: dict[str, Agent]
    """Changed in place when the settings are read again; runs that go on keep theirs."""
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
        """Who is asked where nobody is named."""
        return next(iter(self.agents.values()))


@asynccontextmanager
async def open_brain(
    orchestrator: Orchestrator, stored: Stored, env: Mapping[str, str]
) -> AsyncGenerator[Brain]:
    """Put it together, take up what was left unfinished, and go on until the block ends."""
    async with AsyncExitStack() as stack:
        brain = await _put_together(orchestrator, stored, env, stack)
        if brain.memory is not None:
            await stack.enter_async_context(brain.memory.serving())
        if await brain.runs.left_any():
            # Their calls are asked for again: of edges that must be known by then.
            known = [one.agent_id for one in stored.devices.all() if one.approved]
            await orchestrator.gather(known, GATHER)
        await stack.enter_async_context(brain.runs.serving())
        # A file is this process's alone: what the one before it held is free.
        alone = stored.database.dialect == "sqlite"
        await stack.enter_async_context(brain.workflows.serving(alone=alone))
        await stack.enter_async_context(brain.desk.serving())
        if days := brain.settings.store.keep_days:
            canvases = brain.equipment.canvases
            forgetting = asyncio.create_task(_forget(stored.database, days * DAY, canvases))
            stack.push_async_callback(_end, forgetting)
        yield brain


async def _forget(
    database: Database, seconds: float, canvases: CanvasFolder | StoredCanvases
) -> None:
    """Forget what is long over, now and every hour."""
    from evoclaw.store.databases.database import StoreError
    from evoclaw.store.sessions.retention import forget_sessions

    async def clear(tenant: str, session_id: str) -> None:
        await canvases.of(tenant, session_id).clear()

    while True:
        try:
            await forget_sessions(database, time.time() - seconds, clear)
        except (StoreError, OSError) as problem:
            logger.warning("old sessions are forgotten later: %s", problem)
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
    settle = _settling(stored.database)
    providers = await _providers(env, stack, settle)
    equipment = await _equipment(
        orchestrator, governance, providers, approvals, stored.database, settle, env, stack
    )
    memory = _memory(settings, stored, env)
    gauges = GaugeReader(orchestrator, stored.database, home, lambda: runs.live)
    metrics = Metrics(gauges.gauges())
    talks = await _conversations(
        stored, agents, equipment, _Ears(equipment, memory, metrics), stack, env
    )
    runs = Runs(talks, settings=settings.runs)
    workflows = _workflows(settings, stored, runs, talks, equipment)
    desk, channels = _channels(settings, stored, runs, talks, env)
    return Brain(
        settings=settings, home=home, stored=stored, orchestrator=orchestrator, agents=agents,
        governance=governance, providers=providers, equipment=equipment, approvals=approvals,
        talks=talks, runs=runs, memory=memory, workflows=workflows, desk=desk, channels=channels,
        metrics=metrics, gauges=gauges,
    )  # fmt: skip


def _approvals(settings: EvoClawConfig, stored: Stored, env: Mapping[str, str]) -> Approvals:
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import Approvals

    redactor = Redactor(secrets_in(env))
    return Approvals(stored.approvals, approval_settings(settings), redactor=redactor)


def approval_settings(settings: EvoClawConfig) -> ApprovalSettings:
    """People can be reached at any time: a run waits for them, unless the settings say no."""
    chosen = settings.approvals
    return structs.replace(chosen, nobody="wait") if chosen.nobody is None else chosen


def _canvases(database: Database, env: Mapping[str, str]) -> CanvasFolder | StoredCanvases:
    """What sessions show: beside what several orchestrators share, or in a folder."""
    from evoclaw.store.sessions.sheets import StoredCanvases
    from evoclaw.wiring.conversations import canvas_folder

    if database.dialect == "sqlite":
        return canvas_folder(env, CANVAS)
    return StoredCanvases(database, CANVAS)


def _settling(database: Database) -> Settle:
    async def settle() -> None:
        await database.write(lambda connection: None)

    return settle


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
    desk = home / "desk"
    desk.mkdir(parents=True, exist_ok=True, mode=0o700)
    box = await stack.enter_async_context(open_toolbox(desk, env, key="up"))
    signer = await stack.enter_async_context(open_signer(env, database=database))
    return RunFactory(
        orchestrator, providers, governance, approvals.approver, box, signer, settle,
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
    """Who listens to runs, and what is remembered for them."""

    equipment: RunFactory
    memory: Memory | None
    metrics: Metrics

    def sinks(self, session: Session, records: Sequence[Record]) -> Sequence[Sink]:
        """The audit, the metrics, the memory."""
        who = Principal(session.tenant, session.owner, session.agent)
        governance = self.equipment.governance
        found = [*governance.sinks(session.id, records, who), self.metrics.sink(session.agent)]
        return found if self.memory is None else [*found, self.memory.sink(session, records)]

    async def recall(self, agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
        """What may matter for a run."""
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
        cheaper=[equipment.providers.of(one) for one in settings.orchestrator.cheaper_models],
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
    patience = {one.name: one.patience_s for one in settings.channels}
    store = ChannelStore(stored.database)
    return FrontDesk(store, runs, talks, channels, patience=patience), channels
