"""The run factory of `evoclaw up`: provider, call pipeline and approver of each run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from evoclaw.core.history import History
from evoclaw.core.labels import Principal
from evoclaw.core.pipeline import Pipeline, Step
from evoclaw.core.ports import Approver, Policy, Ports
from evoclaw.core.routes import Place, Route
from evoclaw.core.tools import Tool
from evoclaw.wiring.fleet import ANY, EACH, fleet_tools
from evoclaw.wiring.toolbox import refilled

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.executors.canvases import CanvasFolder
    from evoclaw.executors.receipt_step import Sign
    from evoclaw.orchestrator.fleet.delegation import Delegated, Stay
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.store.sessions.sessions import Session
    from evoclaw.store.sessions.sheets import StoredCanvases
    from evoclaw.wiring.governance import Governance
    from evoclaw.wiring.providing import Providers, Settle
    from evoclaw.wiring.toolbox import Toolbox

FLEET_NAMES = ("edge_call", "jobs", "nodes")
"""Tools of the orchestrator about the fleet as a whole."""
STICKY = 10_000
"""Sessions whose edges are remembered."""


@dataclass(slots=True)
class RunFactory:
    """Builds the parts of each run by the definition of its agent."""

    orchestrator: Orchestrator
    providers: Providers
    governance: Governance
    approver: Callable[[str], Approver]
    box: Toolbox
    sign: Sign
    settle: Settle
    """Waits for the disk, before anything is done here."""
    canvases: CanvasFolder | StoredCanvases
    """What sessions show."""
    _policies: dict[str, tuple[Policy, ...]] = field(
        default_factory=dict[str, "tuple[Policy, ...]"]
    )
    _sticky: OrderedDict[str, Stay] = field(default_factory=OrderedDict[str, "Stay"])

    def ports(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        """The parts of one run."""
        from evoclaw.tools.canvas import Canvas

        agent = self._able(agent)
        injected = dict(given)
        history = cast("History", injected.pop(History))
        injected[Canvas] = self.canvases.of(session.tenant, session.id)
        pipeline = self._pipeline(agent, f"{session.tenant}/{session.id}", injected, history)
        pipeline = pipeline.with_steps(*self.policies(agent))
        return Ports(
            self.providers.of(agent.model),
            pipeline,
            pipeline.policy,
            self.approver(session.id),
            Principal(agent=agent.name),
        )

    def changed(self, governance: Governance) -> None:
        """Use other settings from now on; runs under way keep what they have."""
        self.governance = governance
        self._policies.clear()

    def tools(self, agent: Agent) -> Sequence[Tool]:
        """What a run of an agent would be offered now."""
        return self._pipeline(self._able(agent), "", {}, History()).tools()

    def _able(self, agent: Agent) -> Agent:
        """An agent as its model can cope with: a small one is confused by many tools."""
        from evoclaw.wiring.models import for_model

        few = for_model(agent.model or self.providers.default, None)
        if few is None or agent.tools is not None:
            return agent
        return replace(agent, tools=frozenset(few))

    def policies(self, agent: Agent) -> tuple[Policy, ...]:
        """One set for all runs of an agent: what is counted in it is counted for all of them."""
        from evoclaw.orchestrator.agents.definitions import level_of

        if agent.name not in self._policies:
            level = level_of(agent)
            # Not the tools of the run that comes first: it may be narrowed, and is released.
            tools = partial(self.tools, agent)
            self._policies[agent.name] = self.governance.rules(
                level, agent.capabilities, None, tools
            )
        return self._policies[agent.name]

    def _pipeline(
        self, agent: Agent, session: str, injected: Mapping[type, object], history: History
    ) -> Pipeline:
        from evoclaw.executors.local import LocalExecutor
        from evoclaw.executors.receipt_step import SignReceipt
        from evoclaw.skills.skill_tools import SkillsInUse
        from evoclaw.wiring.pipelines import service_pipeline

        box = refilled(self.box, injected)
        tools = [bound for bound in box.tools if bound.name in self._own_names()]
        here = [LocalExecutor(tools, given=box.given), *box.servers]
        routes = [Route(executor, ready=self.settle) for executor in here]
        routes += self._fleet_routes(agent, session)
        steps = [
            *self._offers(agent, box),
            SkillsInUse(box.shelf, history),
            SignReceipt(self.sign),
            *self.governance.steps(),
        ]
        return service_pipeline().build(routes, steps)

    def _offers(self, agent: Agent, box: Toolbox) -> list[Step]:
        """What the agent's definition and the settings offer."""
        from evoclaw.governance.permissions import PermittedTools
        from evoclaw.orchestrator.agents.offering import AgentSkills, AgentTools, DefaultTimeout
        from evoclaw.orchestrator.agents.prompt import active_skills

        steps: list[Step] = [PermittedTools(agent.capabilities)]
        if agent.tools is not None:
            steps.append(AgentTools(agent.tools))
        if active := active_skills(agent, box.shelf.skills()):
            steps.append(AgentSkills(tuple(active)))
        timeout_ms = self.governance.settings.orchestrator.default_tool_timeout_ms
        if timeout_ms is not None:
            steps.append(DefaultTimeout(timeout_ms / 1000))
        return steps

    def _fleet_routes(self, agent: Agent, session: str) -> list[Route]:
        """The fleet, as far as the agent is meant to work on it."""
        place = agent.on or ANY
        if place not in (ANY, EACH):
            return [Route(self.orchestrator.edge(place), Place.EDGE)]
        asking = fleet_tools(self.orchestrator, agent.capabilities)
        if place == EACH:
            return asking
        return [*asking, Route(self._delegated(session), Place.EDGE)]

    @staticmethod
    def _own_names() -> frozenset[str]:
        """Tools that need the orchestrator's own stores; all others run on edges."""
        from evoclaw.tools.catalogue import RunsOn, entries_on

        names = (entry.name for entry in entries_on(RunsOn.ORCHESTRATOR))
        return frozenset(names) - {*FLEET_NAMES}

    def _delegated(self, session: str) -> Delegated:
        """All runs of a session stay with the edges they chose; the tools are each run's own."""
        found = self.orchestrator.delegated([*self._own_names(), *FLEET_NAMES])
        found.stay = self._sticky.pop(session, found.stay)
        self._sticky[session] = found.stay
        while len(self._sticky) > STICKY:
            self._sticky.popitem(last=False)
        return found
