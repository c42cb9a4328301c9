"""What the runs of `evoclaw up` are given: the fleet's tools, and the few that are here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from evoclaw.core.history import History
from evoclaw.core.labels import Principal
from evoclaw.core.ports import Approver, Executor, Policy, Ports
from evoclaw.core.tools import Tool
from evoclaw.wiring.fleet import ANY, EACH, fleet_tools
from evoclaw.wiring.toolbox import refilled

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.executors.canvases import CanvasFolder
    from evoclaw.executors.receipted import Sign
    from evoclaw.orchestrator.fleet.delegation import Delegated, Stay
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.store.sessions.sessions import Session
    from evoclaw.store.sessions.sheets import StoredCanvases
    from evoclaw.wiring.governing import Governance
    from evoclaw.wiring.providing import Providers, Settle
    from evoclaw.wiring.toolbox import Toolbox

HERE = frozenset(
    {
        "agents_list",
        "canvas",
        "question",
        "session_status",
        "sessions_history",
        "sessions_list",
        "sessions_send",
        "sessions_spawn",
        "skill",
        "task",
        "todoread",
        "todowrite",
    }
)
"""Tools that need the orchestrator's own stores; all others run on edges."""
STICKY = 10_000
"""Sessions whose edges are remembered."""


@dataclass(slots=True)
class Equipment:
    """Gives each run its parts, by the definition of its agent."""

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
    _rules: dict[str, Policy] = field(default_factory=dict[str, Policy])
    _sticky: OrderedDict[str, Stay] = field(default_factory=OrderedDict[str, "Stay"])

    def ports(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        """What one run is given."""
        from evoclaw.tools.canvas import Canvas

        agent = self._able(agent)
        handed = dict(given)
        history = cast("History", handed.pop(History))
        handed[Canvas] = self.canvases.of(session.tenant, session.id)
        executor = self._executor(agent, f"{session.tenant}/{session.id}", handed, history)
        around = self.governance.around(executor)
        return Ports(
            self.providers.of(agent.model),
            around,
            self.chain(agent),
            self.approver(session.id),
            Principal(agent=agent.name),
        )

    def changed(self, governance: Governance) -> None:
        """Go by other settings from now on; runs that go on keep what they have."""
        self.governance = governance
        self._rules.clear()

    def tools(self, agent: Agent) -> Sequence[Tool]:
        """What a run of an agent would be offered now."""
        executor = self._executor(self._able(agent), "", {}, History())
        return self.governance.around(executor).tools()

    def _able(self, agent: Agent) -> Agent:
        """An agent as its model can cope with: a small one is confused by many tools."""
        from evoclaw.wiring.models import for_model

        few = for_model(agent.model or self.providers.default, None)
        if few is None or agent.tools is not None:
            return agent
        return replace(agent, tools=frozenset(few))

    def chain(self, agent: Agent) -> Policy:
        """One for all runs of an agent: what is counted in it is counted for all of them."""
        from evoclaw.orchestrator.agents.definitions import level_of

        if agent.name not in self._rules:
            level = level_of(agent)
            # Not those of the run that comes first: it may be narrowed, and is to be let go of.
            tools = partial(self.tools, agent)
            self._rules[agent.name] = self.governance.chain(level, agent.capabilities, None, tools)
        return self._rules[agent.name]

    def _executor(
        self, agent: Agent, session: str, handed: Mapping[type, object], history: History
    ) -> Executor:
        from evoclaw.executors.local import LocalExecutor
        from evoclaw.executors.receipted import Receipted
        from evoclaw.executors.routed import Routed
        from evoclaw.executors.settled import Settled
        from evoclaw.orchestrator.agents.offering import offered
        from evoclaw.orchestrator.agents.prompt import active_skills
        from evoclaw.skills.narrowing import Narrowed

        box = refilled(self.box, handed)
        tools = [bound for bound in box.tools if bound.name in HERE]
        here = Receipted(LocalExecutor(tools, given=box.given), self.sign)
        settled = [Settled(one, self.settle) for one in (here, *box.servers)]
        every = Routed([*settled, *self._there(agent, session)])
        active = active_skills(agent, box.shelf.skills())
        own = offered(every, agent, active=active, seconds=self._seconds())
        return Narrowed(own, box.shelf, history)

    def _seconds(self) -> float | None:
        """How long a call may take that names no time."""
        said = self.governance.settings.orchestrator.default_tool_timeout_ms
        return None if said is None else said / 1000

    def _there(self, agent: Agent, session: str) -> Sequence[Executor]:
        """The fleet, as far as the agent is meant to work on it."""
        place = agent.on or ANY
        if place not in (ANY, EACH):
            return [self.orchestrator.edge(place)]
        asking = fleet_tools(self.orchestrator, agent.capabilities)
        return [asking] if place == EACH else [asking, self._delegated(session)]

    def _delegated(self, session: str) -> Delegated:
        """All runs of a session stay with the edges they chose; the tools are each run's own."""
        found = self.orchestrator.delegated([*HERE, "edge_call", "jobs", "nodes"])
        found.stay = self._sticky.pop(session, found.stay)
        self._sticky[session] = found.stay
        while len(self._sticky) > STICKY:
            self._sticky.popitem(last=False)
        return found
