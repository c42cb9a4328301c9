"""The run factory of `evoclaw up`: provider, call pipeline, approver and sinks of each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from evoclaw.core.history import History
from evoclaw.core.labels import Principal
from evoclaw.core.pipeline import Pipeline, Step
from evoclaw.core.ports import Approver, Policy, Ports, Sink
from evoclaw.core.routes import Route
from evoclaw.core.tools import Tool
from evoclaw.wiring.toolbox import with_dependencies

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.core.events import Record
    from evoclaw.core.messages import Message
    from evoclaw.executors.call_steps import Sign
    from evoclaw.executors.canvases import CanvasFolder
    from evoclaw.governance.autonomy import Level
    from evoclaw.observe.metrics import Metrics
    from evoclaw.orchestrator.agents.memory import Memory
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.providers.wrappers import Flush
    from evoclaw.store.sessions.canvases import StoredCanvases
    from evoclaw.store.sessions.sessions import Session, StoredRun
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.toolbox import Toolbox


@dataclass(slots=True)
class RunFactory:
    """Builds the parts of each run by the definition of its agent."""

    orchestrator: Orchestrator
    providers: ProviderCache
    governance: Governance
    approver: Callable[[str], Approver]
    toolbox: Toolbox
    sign: Sign
    flush: Flush
    """Waits until the store has written everything to disk; called before a local call runs."""
    canvases: CanvasFolder | StoredCanvases
    """The canvases of sessions."""
    memory: Memory | None
    metrics: Metrics
    _policies: dict[str, tuple[Policy, ...]] = field(
        default_factory=dict[str, "tuple[Policy, ...]"]
    )

    def ports(self, agent: Agent, session: Session, dependencies: Mapping[type, object]) -> Ports:
        """The parts of one run."""
        from evoclaw.core.canvases import Canvas
        from evoclaw.orchestrator.agents.offer_steps import fit_to_model

        agent = fit_to_model(agent, self.providers.default)
        injected = dict(dependencies)
        history = cast("History", injected.pop(History))
        injected[Canvas] = self.canvases.of(session.tenant, session.id)
        pipeline = self._pipeline(agent, f"{session.tenant}/{session.id}", injected, history)
        pipeline = pipeline.with_steps(*self.policies(agent))
        return Ports(
            self.providers.get(agent.model),
            pipeline,
            pipeline.policy,
            self.approver(session.id),
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
        from evoclaw.orchestrator.agents.offer_steps import fit_to_model

        agent = fit_to_model(agent, self.providers.default)
        return self._pipeline(agent, "", {}, History()).tools()

    def policies(self, agent: Agent, level: Level | None = None) -> tuple[Policy, ...]:
        """The policies of an agent, shared by its runs: a rate counts the calls of all of them.

        With a `level` other than the agent's own, they are new and not shared.
        """
        from evoclaw.orchestrator.agents.definitions import level_of

        # Not the tools of the first run: they may be narrowed, and the run must be freed.
        tools = partial(self.tools, agent)
        if level is not None:
            return self.governance.rules(level, agent.capabilities, None, tools)
        if agent.name not in self._policies:
            self._policies[agent.name] = self.governance.rules(
                level_of(agent), agent.capabilities, None, tools
            )
        return self._policies[agent.name]

    def _pipeline(
        self, agent: Agent, session: str, injected: Mapping[type, object], history: History
    ) -> Pipeline:
        from evoclaw.executors.call_steps import SignReceipt
        from evoclaw.executors.local import LocalExecutor
        from evoclaw.orchestrator.fleet.edge_routes import orchestrator_tool_names, session_routes
        from evoclaw.skills.disclosure import ActiveSkillTools
        from evoclaw.wiring.pipelines import service_pipeline

        toolbox = with_dependencies(self.toolbox, injected)
        names = orchestrator_tool_names()
        tools = [bound for bound in toolbox.tools if bound.name in names]
        executors = [LocalExecutor(tools, given=toolbox.dependencies), *toolbox.mcp_servers]
        routes = [Route(executor, ready=self.flush) for executor in executors]
        routes += session_routes(self.orchestrator, agent, session)
        steps = [
            *self._offer_steps(agent, toolbox),
            ActiveSkillTools(toolbox.skill_registry, history),
            SignReceipt(self.sign),
            *self.governance.steps(),
        ]
        return service_pipeline().build(routes, steps)

    def _offer_steps(self, agent: Agent, toolbox: Toolbox) -> list[Step]:
        """The steps that offer what the agent's definition and the settings allow."""
        from evoclaw.governance.permissions import PermittedTools
        from evoclaw.orchestrator.agents.offer_steps import AgentSkills, AgentTools, DefaultTimeout
        from evoclaw.orchestrator.agents.prompt import active_skills

        steps: list[Step] = [PermittedTools(agent.capabilities)]
        if agent.tools is not None:
            steps.append(AgentTools(agent.tools))
        if active := active_skills(agent, toolbox.skill_registry.skills()):
            steps.append(AgentSkills(tuple(active)))
        timeout_ms = self.governance.settings.orchestrator.default_tool_timeout_ms
        if timeout_ms is not None:
            steps.append(DefaultTimeout(timeout_ms / 1000))
        return steps
