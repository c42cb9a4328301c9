"""Builds the evaluation of an agent on this machine: its model, its tools, its policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from evoclaw.core.errors import AgentNotFound, ConfigError

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.core.genome import Genome
    from evoclaw.core.pipeline import Step
    from evoclaw.core.ports import Provider
    from evoclaw.evolution.cases import CaseFile, CaseFolder
    from evoclaw.evolution.evaluation import CaseRun, OpenRun
    from evoclaw.evolution.evaluation_service import EvaluationService
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.evolution.lineage_audit import LineageAudit
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.skills.tuned import SkillSource
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.toolbox import Toolbox


def case_folder(env: Mapping[str, str]) -> CaseFolder:
    """The folder of cases that the settings name."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.evolution.cases import CaseFolder
    from evoclaw.wiring.settings import orchestrator_settings

    chosen = orchestrator_settings(env).evolution.cases
    return CaseFolder(chosen or default_data_folder(env) / "cases")


@asynccontextmanager
async def open_lineage(env: Mapping[str, str]) -> AsyncGenerator[GenomeLineage]:
    """The lineages in the store, beside a service that may use them."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.store.genomes import SCHEMA
    from evoclaw.wiring.evolution import signed_lineage
    from evoclaw.wiring.store import connect_database

    async with connect_database(env, SCHEMA) as database:
        yield signed_lineage(database, default_data_folder(env))


@asynccontextmanager
async def open_audited_lineage(
    env: Mapping[str, str],
) -> AsyncGenerator[tuple[GenomeLineage, LineageAudit]]:
    """The lineages for a command that adds to them, and their audit; beside a service."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.observe.audit.writer import serving_audit
    from evoclaw.store.genomes import SCHEMA
    from evoclaw.wiring.evolution import lineage_audit, signed_lineage
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database

    settings, home = orchestrator_settings(env).audit, default_data_folder(env)
    async with (
        serving_audit(home, settings, env) as audit,
        connect_database(env, SCHEMA) as database,
    ):
        if audit is not None and audit.failing:
            raise ConfigError(f"nothing is decided while the audit fails: {audit.failing}")
        yield signed_lineage(database, home), lineage_audit(database, audit)


async def genome_for_run(env: Mapping[str, str], version: int | None, digest: str = "") -> Genome:
    """The genome of a run on this machine: that of the default agent, current or by version.

    `digest` is of a run that is resumed. A machine without genomes opens no database. Raises
    `GenomeNotFound`.
    """
    from evoclaw.config.paths import default_data_folder
    from evoclaw.core.genome import CONFIGURED
    from evoclaw.orchestrator.agents.definitions import DEFAULT_AGENT
    from evoclaw.store.genomes import has_genome
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import DATABASE_FILE

    is_local = not orchestrator_settings(env).store.url
    if version is None and not digest and is_local:
        path = default_data_folder(env) / DATABASE_FILE
        if not await asyncio.to_thread(has_genome, path, DEFAULT_AGENT):
            return CONFIGURED
    async with open_lineage(env) as lineage:
        if digest:
            return await lineage.find(DEFAULT_AGENT, digest)
        return await lineage.version(DEFAULT_AGENT, version)


@asynccontextmanager
async def open_case_runner(
    name: str,
    genome: Genome,
    env: Mapping[str, str],
    *,
    governance: Governance | None = None,
    providers: ProviderCache | None = None,
) -> AsyncGenerator[CaseRunner]:
    """What runs cases of an agent with a genome; `AgentNotFound` if there is no such agent.

    Args:
        name: The agent.
        genome: Its genome.
        env: Says where the settings are.
        governance: That of the agent, if this process has it already.
        providers: Those of this process, if it has them already.
    """
    from evoclaw.orchestrator.agents.tuning import tune
    from evoclaw.providers.registry import open_provider
    from evoclaw.wiring.agents import defined_agents
    from evoclaw.wiring.governance import open_governance
    from evoclaw.wiring.settings import model_for_run, provider_options

    agents = defined_agents(env)
    if name not in agents:
        raise AgentNotFound(name, tuple(agents))
    async with AsyncExitStack() as stack:
        if governance is None:
            governance = await stack.enter_async_context(open_governance(env, name))
        agent = tune(agents[name], genome)
        if providers is None:
            model = await model_for_run(agent.model or None, env)
            provider = await stack.enter_async_context(
                open_provider(model, env, provider_options(governance.settings))
            )
        elif problem := providers.problem(agent.model):
            raise ConfigError(problem)
        else:
            model, provider = agent.model or providers.default, providers.get(agent.model)
        yield CaseRunner(agent, agents, model, provider, governance, env)


def evaluation_service(
    database: Database, genomes: GenomeLineage, run_factory: RunFactory, env: Mapping[str, str]
) -> EvaluationService:
    """Runs evaluations with the models, the budget and the audit of a service."""
    from evoclaw.evolution.evaluation_service import EvaluationService
    from evoclaw.store.evaluations import EvaluationStore
    from evoclaw.wiring.evolution import lineage_audit
    from evoclaw.wiring.oversight import stops_for

    @asynccontextmanager
    async def open_runner(name: str, genome: Genome) -> AsyncGenerator[OpenRun]:
        # Nothing is forwarded: the calls of a case run on this machine, or are not executed.
        governance = replace(
            run_factory.governance,
            agent=name,
            stops=stops_for(env, name),
            forwarded=None,
            only_reads=None,
        )
        async with open_case_runner(
            name, genome, env, governance=governance, providers=run_factory.providers
        ) as runner:
            yield runner.open_run

    def stopped(name: str) -> str:
        stop = stops_for(env, name).cancelling_stop()
        return "" if stop is None else stop.description

    return EvaluationService(
        EvaluationStore(database), genomes, case_folder(env), open_runner, stopped=stopped,
        on_entry=lineage_audit(database, run_factory.governance.audit).record,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Prepares the runs of cases: the agent as it is configured, in a workspace of each run."""

    agent: Agent
    agents: Mapping[str, Agent]
    model: str
    provider: Provider
    governance: Governance
    env: Mapping[str, str]

    @asynccontextmanager
    async def open_run(self, case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
        """A run of a case: sandboxed, without a person; it ends with the block."""
        from evoclaw.core.hidden_text import mark_hidden_text
        from evoclaw.core.messages import SystemMessage, user
        from evoclaw.core.ops import ExecOps
        from evoclaw.core.state import PreparedRun, new_run
        from evoclaw.evolution.case_approver import case_approver
        from evoclaw.evolution.evaluation import CaseRun
        from evoclaw.evolution.recorded_results import RecordedResults
        from evoclaw.orchestrator.agents.definitions import level_of
        from evoclaw.orchestrator.agents.prompt import agent_prompt
        from evoclaw.skills.disclosure import RegistrySkillReader
        from evoclaw.skills.tuned import TunedSkills
        from evoclaw.tools.skill import SkillReader
        from evoclaw.wiring.governance import governed_ports
        from evoclaw.wiring.toolbox import open_toolbox, toolbox_routes, with_dependencies

        agent, case_file = self.agent, case.case
        async with AsyncExitStack() as stack:
            toolbox = await stack.enter_async_context(
                open_toolbox(workspace, self.env, key=workspace.parent.name)
            )
            skills = TunedSkills(toolbox.skill_registry, agent.genome)
            prompt = agent_prompt(
                agent, skills=skills.skills(), workspace=workspace, peers=self.agents
            )
            messages = (SystemMessage(prompt), mark_hidden_text(user(case_file.message)))
            recorded = (
                RecordedResults(case, [bound.tool for bound in toolbox.tools])
                if case_file.is_recorded
                else None
            )
            toolbox = with_dependencies(toolbox, {SkillReader: RegistrySkillReader(skills)})
            state = new_run(messages)
            ports = await stack.enter_async_context(
                governed_ports(
                    self.governance,
                    provider=self.provider,
                    model=self.model,
                    routes=[recorded] if recorded else toolbox_routes(toolbox, None),
                    steps=self._steps(toolbox, skills),
                    approver=case_approver(case, recorded),
                    level=level_of(agent),
                    capabilities=agent.capabilities,
                    workspace=workspace,
                    run=PreparedRun(state),
                    env=self.env,
                )
            )
            processes = cast("ExecOps", toolbox.dependencies[ExecOps])
            yield CaseRun(state, ports, agent.settings, processes, recorded)

    def _steps(self, toolbox: Toolbox, skills: SkillSource) -> list[Step]:
        from evoclaw.orchestrator.agents.offer_steps import AgentSkills, AgentTools
        from evoclaw.orchestrator.agents.prompt import active_skills
        from evoclaw.skills.active import ActiveSkillTools
        from evoclaw.wiring.genome_steps import genome_steps
        from evoclaw.wiring.model_tools import model_steps

        agent, genome = self.agent, self.agent.genome
        steps: list[Step] = [
            ActiveSkillTools(skills),
            *model_steps(self.provider.model, agent.tools),
        ]
        if agent.tools is not None:
            steps.append(AgentTools(agent.tools))
        if active := active_skills(agent, skills.skills()):
            steps.append(AgentSkills(active))
        return [*steps, *genome_steps(genome, toolbox.skill_registry)]
