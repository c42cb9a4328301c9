"""Runs of scripted agents, over a store in a folder that several services may share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.events import Record, Replied, ReplyEvent, TextDelta
from evoclaw.core.labels import Principal
from evoclaw.core.messages import Reply, UserMessage
from evoclaw.core.ports import AllowAll, Approver, NoApprover, Policy, Ports, Request
from evoclaw.core.profile import Profile
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.runs.runs import RunRequest, Runs, RunSettings, RunStatus, RunView
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import says
from evoclaw.store.databases.database import Database
from evoclaw.store.governance import approvals
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.runs import queue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool
from evoclaw.tools.question import question
from tests.support.databases import Place
from tests.support.tool_calls import session_tools

WHO = Principal(user="ann")
QUICK = RunSettings(look_s=0.02, lease_s=2.0)
SCHEMAS = (session_tables.SCHEMA, approvals.SCHEMA, queue.SCHEMA)

Answer = Callable[[str, Request], Reply]
"""What an agent replies, by its name and what it is asked."""


def echo(agent: str, request: Request) -> Reply:
    """Say what the user said last."""
    last = [one for one in request.history.to_tuple() if isinstance(one, UserMessage)][-1]
    return says(f"{agent}: {last.text}")


class Gate:
    """Holds up whoever comes to it until it is opened for that one."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self._open: dict[str, asyncio.Event] = {}
        self.wide = False
        """Nobody is held up."""

    async def pass_(self, name: str) -> None:
        event = self._open.setdefault(name, asyncio.Event())
        self.came.put_nowait(name)
        if not self.wide:
            await event.wait()

    def open(self, name: str) -> None:
        self._open.setdefault(name, asyncio.Event()).set()

    async def next(self) -> str:
        """Who comes next."""
        async with asyncio.timeout(30):
            return await self.came.get()


class GatedModel:
    """A provider that is asked what to say, and can be held up after its first word."""

    def __init__(self, house: RunServiceHarness, agent: Agent) -> None:
        self._house, self._agent = house, agent
        self.model, self.profile = agent.model, Profile()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        self._house.requests.append(request.history.to_tuple()[-1])
        reply = self._house.answer(self._agent.name, request)
        for word in reply.text.splitlines(keepends=True):
            yield TextDelta(word)
        if self._house.gate is not None:
            await self._house.gate.pass_(reply.text or "calls")
        yield Replied(reply)


class RunServiceHarness:
    """Runs, and what a test may change about them."""

    def __init__(
        self, database: Database, agents: Sequence[Agent], settings: RunSettings, holder: str
    ) -> None:
        self.answer: Answer = echo
        self.gate: Gate | None = None
        self.requests: list[object] = []
        """The last message of everything that a model was asked."""
        self.equipped: list[Agent] = []
        self.worked_on: list[str] = []
        """The edge that was chosen for each time that a run was prepared."""
        self.edges: list[Member] = []
        self.ran: list[str] = []
        self.policy: Policy = AllowAll()
        self.approver: Approver = NoApprover()
        self.store = SessionStore(database)
        self.approvals = ApprovalStore(database)
        self.questions = Questions(self.store.questions, suspends_runs=True)
        self.talks = Conversations(
            self.store,
            {agent.name: agent for agent in agents},
            self.equip,
            questions=self.questions,
            approvals=self.approvals,
            limits=RunLimits(),
            edges=lambda: self.edges,
            defer_commits=True,
        )
        self.runs = Runs(self.talks, agent="lead", settings=settings, process_identity=holder)

    def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        self.equipped.append(agent)
        self.worked_on.append(session.on)
        ran = self.ran

        @tool("shell", resources=(), timeout=60)
        async def work(what: str = "") -> str:
            """Work."""
            ran.append(what)
            return f"worked on {what}"

        executor = LocalExecutor((work, question, *session_tools()), given=given)
        return Ports(GatedModel(self, agent), executor, self.policy, self.approver)

    async def start(
        self,
        message: str,
        *,
        session: str = "",
        who: Principal = WHO,
        agent: str = "",
        on: str = "",
        **more: str,
    ) -> RunView:
        """Start a run."""
        request = RunRequest(message, session, agent, on=on)
        view, _ = await self.runs.start(who, request, **more)
        return view

    async def wait_ended(self, run_id: str, tenant: str = "local") -> RunView:
        """Wait until a run ended or waits."""
        async with asyncio.timeout(30):
            await self.runs.result(tenant, run_id)
        view = await self.runs.get(tenant, run_id)
        assert view is not None
        return view

    async def wait_for_state(
        self, run_id: str, *states: RunStatus, tenant: str = "local"
    ) -> RunView:
        """Wait until a run stands so."""
        found: RunView | None = None

        async def stands() -> bool:
            nonlocal found
            found = await self.runs.get(tenant, run_id)
            return found is not None and found.state in states

        async with asyncio.timeout(30):
            await self.runs.hub.wait_until((tenant, run_id), stands)
        assert found is not None
        return found

    async def records(self, run_id: str, after: int = 0, *, follow: bool = False) -> list[Record]:
        """Watch a run to its end."""
        async with asyncio.timeout(30):
            watched = self.runs.watch("local", run_id, after, follow=follow)
            return [record async for record in watched]


LEAD = Agent("lead", "scripted/model", "You lead.", frozenset({"*"}))
HELP = Agent("help", "scripted/other", "You help.", frozenset({"*"}), LoopSettings(max_turns=3))


@asynccontextmanager
async def open_run_service(
    place: Place,
    *,
    agents: Sequence[Agent] = (LEAD, HELP),
    settings: RunSettings = QUICK,
    holder: str = "",
    serve: bool = True,
) -> AsyncGenerator[RunServiceHarness]:
    """A service over the store at a place; cut off when the block ends."""
    async with AsyncExitStack() as stack:
        database = await place.open(*SCHEMAS)
        stack.push_async_callback(database.close)
        made = RunServiceHarness(database, agents, settings, holder)
        if serve:
            await stack.enter_async_context(made.runs.serving())
        yield made
