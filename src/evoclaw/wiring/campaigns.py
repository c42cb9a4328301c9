"""Builds the evolution of agents: the engine with its proposers and the stages of the gate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.core.evolution_settings import AgentEvolution
    from evoclaw.core.genome import Genome
    from evoclaw.core.ports import Provider
    from evoclaw.core.tools import Tool
    from evoclaw.evolution.campaign_status import Campaigns
    from evoclaw.evolution.candidates import Candidate, StageResult
    from evoclaw.evolution.cases import CaseFile
    from evoclaw.evolution.engine import EvolutionEngine
    from evoclaw.evolution.evaluation import OpenRun
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.evolution.lineage_audit import LineageAudit
    from evoclaw.evolution.real_runs import RealRuns, RunComment
    from evoclaw.orchestrator.channels.chat.receiver_lease import ReceiverLease
    from evoclaw.skills.registry import SkillRegistry
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.governance import Governance

logger = logging.getLogger(__name__)
EVOLUTION_LEASE_S = 15.0
"""Seconds after which another process takes over the evolution of an agent from one that died."""
RELOAD_POLL_INTERVAL_S = 2.0
"""Seconds between two looks at which agents evolve: the settings may be reloaded."""


def evolution_lease(agent: str, database: Database) -> ReceiverLease:
    """The right of one process to drive the evolution of an agent."""
    from evoclaw.orchestrator.channels.chat.receiver_lease import ReceiverLease
    from evoclaw.store.channels import ChannelStore

    # No channel has a blank in its name.
    return ReceiverLease(f"evolution {agent}", ChannelStore(database), EVOLUTION_LEASE_S)


@dataclass(frozen=True, slots=True)
class CampaignParts:
    """What the evolution of an agent is built from, in a service or in a command."""

    env: Mapping[str, str]
    database: Database
    agents: Mapping[str, Agent]
    lineage: GenomeLineage
    governance: Governance
    provider: Callable[[str], Provider]
    """The provider of a model; the same one for the same name."""
    skills: SkillRegistry
    tools: Callable[[str], Sequence[Tool]]
    """What an agent is offered, with the tools' own descriptions."""

    def problem(self, name: str) -> str:
        """Why the proposers of an agent, or the model that they ask, cannot be used; or empty."""
        from evoclaw.core.errors import ConfigError
        from evoclaw.evolution.proposers.registry import proposers_by_name
        from evoclaw.providers.cache import UnavailableModel

        evolution = self.settings(name)
        try:
            proposers_by_name(evolution.proposers)
        except ConfigError as problem:
            return f"agent {name!r}: [agents.evolution] proposers: {problem}"
        if reflecting := evolution.model:
            provider = self.provider(reflecting)
            if isinstance(provider, UnavailableModel):
                return f"agent {name!r}: [agents.evolution] model: {provider.reason}"
        return ""

    def engine(self, name: str) -> EvolutionEngine:
        """The engine of an agent.

        While there is a `problem`, it does not ask for proposals, and does all else: candidates are
        judged, and a promoted one is watched.
        """
        from evoclaw.core.errors import ConfigError
        from evoclaw.evolution.engine import EvolutionEngine
        from evoclaw.evolution.proposer_context import ProposerContexts
        from evoclaw.evolution.proposers.registry import proposers_by_name
        from evoclaw.evolution.stages import GateStages

        def settings() -> AgentEvolution:
            return self.settings(name)

        real_runs, agent = self._real_runs(name, settings), self.agents[name]
        try:
            proposers = proposers_by_name(agent.evolution.proposers)
        except ConfigError:
            proposers = ()  # it is the `problem`
        stages = GateStages(
            name, self.lineage, settings, static=self._static_check(name),
            open_runner=lambda genome: self._open_runner(name, genome),
            cases=lambda: self._cases(name), real_runs=real_runs, clock=time.time,
        )  # fmt: skip
        contexts = ProposerContexts(
            agent, self.lineage, settings,
            provider=lambda model: self.provider(model or agent.model),
            tools=lambda: self.tools(name), tool_prompt=lambda: self._tool_prompt(name),
            cases=lambda: self._cases(name),
            open_runner=lambda genome: self._open_runner(name, genome), real_runs=real_runs,
            on_entry=self.audit.record, clock=time.time,
        )  # fmt: skip
        return EvolutionEngine(
            name, self.lineage, settings, proposers=proposers,
            open_context=contexts.open, checks=stages.checks(), watch=stages.watch,
            stopped=lambda: self.stopped(name), problem=lambda: self.problem(name),
            on_entry=self.audit.record,
            recover=lambda: self.audit.recover(name),
        )  # fmt: skip

    @property
    def audit(self) -> LineageAudit:
        """What records the entries of the lineages."""
        from evoclaw.wiring.evolution import lineage_audit

        return lineage_audit(self.database, self.governance.audit)

    def settings(self, name: str) -> AgentEvolution:
        """How an agent evolves; a reload may have removed it."""
        from evoclaw.core.evolution_settings import AgentEvolution

        found = self.agents.get(name)
        return AgentEvolution() if found is None else found.evolution

    def stopped(self, name: str) -> str:
        """Why the evolution of an agent is stopped; empty if it is not."""
        stop = self.governance.stops.stop_for_device(name)
        if stop is not None:
            return stop.description
        audit = self.governance.audit
        return f"the audit fails: {audit.failing}" if audit is not None and audit.failing else ""

    def _cases(self, name: str) -> list[CaseFile]:
        from evoclaw.wiring.evaluation import case_folder

        found, problems = case_folder(self.env).read()
        for problem in problems:
            logger.warning("ignored: %s", problem)
        return [case for case in found if case.case.agent in ("", name)]

    @asynccontextmanager
    async def _open_runner(self, name: str, genome: Genome) -> AsyncGenerator[OpenRun]:
        from dataclasses import replace

        from evoclaw.orchestrator.agents.tuning import tune
        from evoclaw.wiring.evaluation import CaseRunner

        governance = replace(self.governance, agent=name, forwarded=None, only_reads=None)
        agent = tune(self.agents[name], genome)
        provider = self.provider(agent.model)
        runner = CaseRunner(agent, self.agents, provider.model, provider, governance, self.env)
        yield runner.open_run

    def _static_check(self, name: str) -> Callable[[Candidate, Genome, Genome], StageResult]:
        from evoclaw.evolution.gate.leaks import LeakCheck
        from evoclaw.evolution.gate.static import static_result
        from evoclaw.orchestrator.agents.tuning import check_genome

        def judge(candidate: Candidate, old: Genome, new: Genome) -> StageResult:
            agent, skills = self.agents[name], self.skills.skills()
            default = self.provider("").model

            def check(genome: Genome) -> None:
                names = [skill.name for skill in skills]
                check_genome(agent, genome, skills=names, default_model=default)

            return static_result(
                agent, self.tools(name), old, new, digest=candidate.proposal.digest,
                untrusted=candidate.proposal.untrusted,
                skills={
                    skill.name: frozenset(program.tool.name for program in skill.programs)
                    for skill in skills
                },
                check=check, leaks=LeakCheck(self._cases(name)),
                tool_prompt=self._tool_prompt(name),
            )  # fmt: skip

        return judge

    def _tool_prompt(self, name: str) -> str:
        from evoclaw.providers.text_calls import shipped_tool_prompt

        return shipped_tool_prompt(self.provider(self.agents[name].model).profile.calls)

    def _real_runs(self, name: str, settings: Callable[[], AgentEvolution]) -> RealRuns:
        import msgspec

        from evoclaw.evolution.real_runs import RealRuns, RunComment
        from evoclaw.store.metrics.store import MetricsStore
        from evoclaw.store.sessions.ratings import RatingStore
        from evoclaw.store.sessions.sessions import SessionStore

        ratings = RatingStore(self.database)

        async def ratings_of(tenant: str, runs: Sequence[str]) -> Mapping[str, RunComment]:
            found = await ratings.of_runs(tenant, runs)
            return {run: msgspec.json.decode(text, type=RunComment) for run, text in found.items()}

        return RealRuns(
            name, MetricsStore(self.database), SessionStore(self.database), ratings_of,
            tenants=lambda: settings().tenants,
        )  # fmt: skip


def campaigns(parts: Callable[[], CampaignParts]) -> Campaigns:
    """The campaigns of the agents, for people; `parts` are those of now."""
    from evoclaw.evolution.campaign_status import Campaigns
    from evoclaw.store.sessions.sessions import SessionStore
    from evoclaw.wiring.evaluation import case_folder

    now = parts()
    sessions = SessionStore(now.database)
    return Campaigns(
        now.lineage, case_folder(now.env), lambda name: parts().settings(name),
        stopped=lambda name: parts().stopped(name),
        problem=lambda name: parts().problem(name),
        has_sessions=lambda tenant: sessions.of(tenant).is_used(),
    )  # fmt: skip


@asynccontextmanager
async def open_campaign_parts(env: Mapping[str, str]) -> AsyncGenerator[CampaignParts]:
    """The parts for a command, beside a service that may run."""
    import tempfile

    from evoclaw.config.paths import default_data_folder
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.providers.http import Http
    from evoclaw.providers.registry import find_model
    from evoclaw.wiring.agents import defined_agents
    from evoclaw.wiring.evolution import checked_lineage
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.settings import orchestrator_settings, provider_options
    from evoclaw.wiring.store import all_schemas, connect_database
    from evoclaw.wiring.toolbox import open_toolbox

    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(connect_database(env, *all_schemas()))
        governance = await stack.enter_async_context(open_governance(env, database=database))
        http = await stack.enter_async_context(Http())
        default, problem = await find_model(env)
        options = provider_options(orchestrator_settings(env))
        providers = ProviderCache(
            http, env, default, stack, database.flush, no_model=problem, options=options
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evoclaw-evolve-")))
        toolbox = await stack.enter_async_context(open_toolbox(folder, env, key="evolve"))
        agents = defined_agents(env)
        lineage = checked_lineage(
            database, default_data_folder(env), agents, toolbox.skill_registry, providers
        )
        yield CampaignParts(
            env=env, database=database, agents=agents, lineage=lineage, governance=governance,
            provider=providers.get, skills=toolbox.skill_registry,
            tools=lambda _: [*(bound.tool for bound in toolbox.tools), *toolbox.extension_tools()],
        )  # fmt: skip


@asynccontextmanager
async def serving_evolution(parts: Callable[[], CampaignParts]) -> AsyncGenerator[None]:
    """Drive the evolution of every agent that has proposers, while the block runs.

    `parts` are those of now: the settings may be reloaded.
    """
    supervising = asyncio.create_task(_supervise(parts), name="evolution")
    try:
        yield
    finally:
        supervising.cancel()
        await asyncio.wait([supervising])


async def _supervise(parts: Callable[[], CampaignParts]) -> None:
    """Start and end engines as the settings say; they may be reloaded."""
    driving: dict[str, tuple[Agent, Governance, asyncio.Task[None]]] = {}
    await _audit_missed(parts())
    try:
        while True:
            now = parts()
            wanted = {name: agent for name, agent in now.agents.items() if agent.evolution.is_on}
            for name, (agent, governance, task) in list(driving.items()):
                if wanted.get(name) != agent or governance is not now.governance or task.done():
                    task.cancel()
                    await asyncio.wait([task])
                    del driving[name]
            for name in wanted.keys() - driving.keys():
                task = asyncio.create_task(_drive(parts, name), name=f"evolution {name}")
                driving[name] = wanted[name], now.governance, task
            await asyncio.sleep(RELOAD_POLL_INTERVAL_S)
    finally:
        tasks = [task for *_, task in driving.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _audit_missed(parts: CampaignParts) -> None:
    """Record what a killed process stored of agents that no engine drives."""
    from evoclaw.core.errors import EvoClawError

    for name, agent in list(parts.agents.items()):
        if agent.evolution.is_on:
            continue
        try:
            await parts.audit.recover(name)
        except EvoClawError as problem:
            logger.warning("audit of the genome of %s: %s", name, problem)


async def _drive(parts: Callable[[], CampaignParts], name: str) -> None:
    """Drive the evolution of one agent, while this process has the lease."""
    from evoclaw.core.errors import EvoClawError

    lease = evolution_lease(name, parts().database)
    try:
        while True:
            try:
                engine = parts().engine(name)
                await lease.acquire()
                await lease.hold(engine.serve())
            except EvoClawError as problem:
                logger.warning("evolution of %s: %s", name, problem)
                await asyncio.sleep(EVOLUTION_LEASE_S)
    finally:
        await lease.release()
