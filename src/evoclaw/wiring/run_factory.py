"""The run factory of `evoclaw up`: provider, call pipeline, approver and sinks of each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from evoclaw.core.genome import CONFIGURED
from evoclaw.core.history import History
from evoclaw.core.labels import LOCAL_PRINCIPAL, Principal
from evoclaw.core.pipeline import Pipeline, Step
from evoclaw.core.ports import Approver, Policy, Ports, Sink
from evoclaw.core.routes import SERVICE_MACHINE, Route
from evoclaw.core.tools import UNDO_TOOL, Tool, UnavailableTool
from evoclaw.wiring.fleet import image_steps
from evoclaw.wiring.toolbox import (
    built_in_route,
    extension_routes,
    session_browser,
    with_dependencies,
)

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.core.events import Record
    from evoclaw.core.messages import Message
    from evoclaw.executors.call_steps import Sign
    from evoclaw.governance.approvals import WorkflowStepRef
    from evoclaw.governance.autonomy import Level
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.providers.wrappers import Flush
    from evoclaw.skills.tuned import SkillSource
    from evoclaw.store.sessions.canvases import StoredCanvases
    from evoclaw.store.sessions.sessions import Session, StoredRun
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.toolbox import Toolbox


def shares_extensions(agent: Agent) -> bool:
    """Whether all tenants may use the operator's skills, own tools and MCP servers with an agent.

    They act with the operator's files and logins, so its definition must name each tool.
    """
    return agent.tools is not None


@dataclass(slots=True)
class RunFactory:
    """Builds the parts of each run by the definition of its agent."""

    orchestrator: Orchestrator
    providers: ProviderCache
    governance: Governance
    approver: Callable[[str, WorkflowStepRef | None], Approver]
    """The approver of a session, and of the step of a workflow whose run it is."""
    toolbox: Toolbox
    sign: Sign
    flush: Flush
    """Waits until the store has written everything to disk; called before a local call runs."""
    canvases: StoredCanvases
    """The canvases of sessions."""
    memory: Memory | None
    metrics: Metrics
    _policies: dict[str, tuple[Policy, ...]] = field(
        default_factory=dict[str, "tuple[Policy, ...]"]
    )

    def ports(self, agent: Agent, session: Session, dependencies: Mapping[type, object]) -> Ports:
        """The parts of one run."""
        from evoclaw.core.canvases import Canvas
        from evoclaw.governance.approvals import WorkflowStepRef

        injected = dict(dependencies)
        history = cast("History", injected.pop(History))
        step = cast("WorkflowStepRef | None", injected.pop(WorkflowStepRef, None))
        injected[Canvas] = self.canvases.of(session.tenant, session.id)
        key = f"{session.tenant}/{session.id}"
        injected |= session_browser(self.toolbox, key)
        pipeline = self._pipeline(
            agent, key, injected, history, session.on, self.policies(agent), tenant=session.tenant
        )
        return Ports(
            self.providers.get(agent.model),
            pipeline,
            pipeline.policy,
            self.approver(session.id, step),
            Principal(agent=agent.name),
        )

    def sinks(self, session: Session, records: Sequence[Record]) -> Sequence[Sink]:
        """The sinks of one run: the audit, the traces, the metrics and the memory."""
        principal = Principal(session.tenant, session.owner, session.agent)
        sinks = [
            *self.governance.sinks(session.id, records, principal),
            self.metrics.sink(session.agent),
        ]
        return sinks if self.memory is None else [*sinks, self.memory.sink(session, records)]

    async def recall(self, agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
        """The notes in memory that may matter for a run."""
        return () if self.memory is None else await self.memory.recall(session, run.message)

    def use_governance(self, governance: Governance) -> None:
        """Use other settings for new runs; active runs keep theirs."""
        self.governance = governance
        self._policies.clear()

    def tools(self, agent: Agent) -> Sequence[Tool]:
        """The tools that a run of an agent would be offered now."""
        return self._offer(agent).tools()

    def unavailable_tools(self, agent: Agent) -> Sequence[UnavailableTool]:
        """The built-in tools that a run of an agent would not be offered now, and why."""
        from evoclaw.tools.catalogue import CATALOGUE, load

        pipeline = self._offer(agent)
        offered = {tool.name for tool in pipeline.tools()}
        here = {tool.name: tool.why for tool in self.toolbox.unavailable}
        edges = "no edge that has it is online: see `evoclaw status`"
        return [
            UnavailableTool(
                bound.tool,
                self._why_withheld(agent, bound.name)
                if pipeline.routes.find(bound.name)
                else here.get(bound.name, edges),
            )
            for bound in load(name for name, entry in CATALOGUE.items() if entry.module)
            if bound.name not in offered
        ]

    def operator_tools(self, agent: Agent) -> frozenset[str]:
        """The tools of an agent that only runs of the operator's tenant are offered."""
        if shares_extensions(agent):
            return frozenset()
        routes = self._offer(agent).routes
        names = (tool.name for tool in self.toolbox.extension_tools())
        return frozenset(
            name
            for name in names
            if (found := routes.find(name)) and found.machine == SERVICE_MACHINE
        )

    def image_problem(self, agent: Agent) -> str:
        """Why the model of an agent cannot see images; empty if it can."""
        model = agent.model or self.providers.default
        if self.providers.get(model).profile.images:
            return ""
        return (
            f"the model {model!r} of agent {agent.name!r} does not read images; "
            "choose one that does"
        )

    def _why_withheld(self, agent: Agent, name: str) -> str:
        from evoclaw.orchestrator.agents.offer_steps import IMAGE_TOOL

        if name == IMAGE_TOOL and (why := self.image_problem(agent)):
            return why
        return f"agent {agent.name!r} may not use it: see its definition in evoclaw.toml"

    def _offer(self, agent: Agent) -> Pipeline:
        """The pipeline of a run that never starts, for its tools."""
        from evoclaw.tools.question import UserPrompter
        from evoclaw.tools.sessions import Sessions

        # Each run gets its own of these.
        of_a_session = dict.fromkeys((UserPrompter, Sessions))
        return self._pipeline(agent, "", of_a_session, History())

    def policies(self, agent: Agent, level: Level | None = None) -> tuple[Policy, ...]:
        """The policies of an agent, shared by its runs: a rate counts the calls of all of them.

        With a `level` other than the agent's own, they are new and not shared.
        """
        from evoclaw.orchestrator.agents.definitions import level_of

        # Not the tools of the first run: they may be narrowed, and the run must be freed.
        tools = partial(self.tools, replace(agent, genome=CONFIGURED))
        if level is not None:
            return self.governance.rules(level, agent.capabilities, None, tools)
        if agent.name not in self._policies:
            self._policies[agent.name] = self.governance.rules(
                level_of(agent), agent.capabilities, None, tools
            )
        return self._policies[agent.name]

    def _pipeline(
        self,
        agent: Agent,
        session: str,
        injected: Mapping[type, object],
        history: History,
        on: str = "",
        policies: Sequence[Policy] = (),
        *,
        tenant: str = LOCAL_PRINCIPAL.tenant,
    ) -> Pipeline:
        from evoclaw.executors.call_steps import SignReceipt
        from evoclaw.skills.active import ActiveSkillTools
        from evoclaw.skills.disclosure import RegistrySkillReader
        from evoclaw.skills.tuned import TunedSkills
        from evoclaw.tools.skill import SkillReader
        from evoclaw.wiring.genome_steps import genome_steps
        from evoclaw.wiring.pipelines import service_pipeline

        genome, skills = agent.genome, TunedSkills(self.toolbox.skill_registry, agent.genome)
        if genome.skills is not None or genome.skill_texts or genome.new_skills:
            injected = {**injected, SkillReader: RegistrySkillReader(skills)}
        toolbox = with_dependencies(self.toolbox, injected)
        routes = self._routes(agent, session, toolbox, on, tenant)
        steps = [
            *self._offer_steps(agent, skills),
            *genome_steps(genome, self.toolbox.skill_registry),
            *image_steps(self.orchestrator, self.providers.get(agent.model)),
            ActiveSkillTools(skills, history),
            SignReceipt(self.sign),
            *self.governance.steps(),
            *policies,
        ]
        return service_pipeline().build(routes, steps)

    def _routes(
        self, agent: Agent, session: str, toolbox: Toolbox, on: str, tenant: str
    ) -> list[Route]:
        """The routes of a run: tools of the orchestrator, then those of its machine and of edges.

        A name belongs to the first route that has it. An agent that works on one edge prefers that
        edge's tools to the skills, own tools and MCP servers of the orchestrator's machine. Those
        are the operator's: runs of other tenants get them only if `shares_extensions`.
        """
        from evoclaw.orchestrator.fleet.edge_routes import session_routes

        offered = tenant == LOCAL_PRINCIPAL.tenant or shares_extensions(agent)
        extensions = extension_routes(toolbox, self.flush, SERVICE_MACHINE) if offered else []
        edges = session_routes(self.orchestrator, agent, session, on)
        rest = [*edges, *extensions] if agent.names_edge else [*extensions, *edges]
        return [built_in_route(toolbox, toolbox.tools, self.flush, SERVICE_MACHINE), *rest]

    def _offer_steps(self, agent: Agent, skills: SkillSource) -> list[Step]:
        """The steps that offer what the agent's definition and the settings allow."""
        from evoclaw.executors.call_steps import WithoutUndoTool
        from evoclaw.governance.permissions import PermittedTools
        from evoclaw.orchestrator.agents.offer_steps import AgentSkills, AgentTools
        from evoclaw.orchestrator.agents.prompt import active_skills
        from evoclaw.providers.scripted import DIRECT_MODEL
        from evoclaw.wiring.model_tools import model_steps

        steps: list[Step] = [PermittedTools(agent.capabilities)]
        names = agent.tools
        if agent.model == DIRECT_MODEL:
            names = None if names is None else names | {UNDO_TOOL}
        else:
            steps.append(WithoutUndoTool())
            steps += model_steps(self.providers.get(agent.model).model, names)
        if names is not None:
            steps.append(AgentTools(names))
        if active := active_skills(agent, skills.skills()):
            steps.append(AgentSkills(tuple(active)))
        return steps
