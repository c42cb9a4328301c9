"""`edge_call` in runs of sessions: narrowed capabilities and budgets hold for the edge's tool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evoclaw.core.agent import Agent
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.governance.forwarded_calls import ForwardedCalls
from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool
from tests.support.conversations import SessionHarness, agent, results
from tests.support.fleet import FleetHarness, open_fleet


class Equipped(SessionHarness):
    """Runs of sessions that may call edges."""

    fleet: FleetHarness

    def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        ports = super().equip(agent, session, given)
        orchestrator = self.fleet.orchestrator
        rules = ForwardedCalls(AllowAll(), forwarded_calls(orchestrator.fleet))
        routes = [ports.executor, orchestrator.edge_call(agent.capabilities)]
        pipeline = Pipeline(routes, [rules])
        return Ports(ports.provider, pipeline, pipeline.policy, ports.approver)


def on_pi(action: str, **params: JSON) -> tuple[str, dict[str, JSON]]:
    return "edge_call", {"agent_id": "pi", "action": action, "params": params}


async def test_a_sub_run_calls_no_tool_of_an_edge_that_its_parent_may_not_use(
    tmp_path: Path,
) -> None:
    lead = Scripted(calls(("task", {"agent": "help", "prompt": "Mark a."})), says("ok"))
    help_ = Scripted(calls(on_pi("mark", text="a")), says("I may not."))
    async with (
        open_fleet(tmp_path) as here,
        await SessionStore.open(tmp_path / "sessions.db", durable=False) as store,
    ):
        agents = (agent("lead", "session", "device", "file_read"), agent("help"))
        home = Equipped(store, agents, RunLimits())
        home.fleet, home.models = here, {"lead": lead, "help": help_}
        await home.send("go")
        refused = help_.requests[1].messages[-1]
        assert isinstance(refused, ToolResult)
        assert refused.error is ErrorKind.PERMISSION_DENIED
        assert here.marks.made == []


async def test_the_budget_of_a_run_counts_what_the_edge_writes(tmp_path: Path) -> None:
    written: list[str] = []

    @tool("file_write", resources=("path",))
    async def note(path: str, content: str) -> str:
        """Write a note."""
        written.append(path)
        return "written"

    first, second = (on_pi("note", path=name, content="one\ntwo\n") for name in "ab")
    lead = Scripted(calls(first), calls(second), says("No more."))
    async with (
        open_fleet(tmp_path, tools=[note]) as here,
        await SessionStore.open(tmp_path / "sessions.db", durable=False) as store,
    ):
        home = Equipped(store, (agent("lead"),), RunLimits(budget=BudgetSettings(files=1)))
        home.fleet, home.models = here, {"lead": lead}
        made = results(await home.send("go"))
        assert [result.error for result in made] == [None, ErrorKind.PERMISSION_DENIED]
        assert written == ["a"]
