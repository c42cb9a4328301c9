"""Conversations with scripted models, over a store in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import CallFinished, Record, RunFinished
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import AllowAll, Approver, NoApprover, Policy, Ports
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import Scripted
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool
from evoclaw.tools.question import question
from evoclaw.tools.todos import todoread, todowrite
from tests.support.tool_calls import session_tools

ALL = frozenset({"*"})
LEAD = Agent("lead", "scripted/model", "You lead.", ALL)
HELP = Agent("help", "scripted/model", "You help.", ALL)


class SessionHarness:
    """What all sessions of a test share."""

    def __init__(self, store: SessionStore, agents: Sequence[Agent], limits: RunLimits) -> None:
        self.store = store
        self.models: dict[str, Scripted] = {}
        """By agent."""
        self.policy: Policy = AllowAll()
        self.approver: Approver = NoApprover()
        self.ran: list[tuple[str, str]] = []
        """The sessions that ran `work`, and what with."""
        self.body: Callable[[str], Awaitable[str]] | None = None
        self.questions = Questions(store.questions, suspends_runs=True)
        self.edges: list[Member] = []
        self.talks = Conversations(
            store,
            {agent.name: agent for agent in agents},
            self.equip,
            limits=limits,
            questions=self.questions,
            edges=lambda: self.edges,
        )

    def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        tools = (self._work(session.id), todowrite, todoread, question, *session_tools())
        executor = LocalExecutor(tools, given=given)
        return Ports(self.models[agent.name], executor, self.policy, self.approver)

    def _work(self, session_id: str) -> BoundTool:
        @tool("shell", resources=(), timeout=60, idempotent=True)
        async def work(what: str = "") -> str:
            """Work."""
            self.ran.append((session_id, what))
            return await self.body(what) if self.body else f"worked on {what}"

        return work

    async def send(
        self,
        message: str,
        *,
        session: str = "main",
        deadline: Deadline | None = None,
        run_id: str = "",
    ) -> list[Record]:
        """Say something in a session of the lead."""
        await self.talks.open("lead", session_id=session)
        async with asyncio.timeout(30):
            said = self.talks.send(session, message, deadline=deadline, run_id=run_id)
            return [record async for record in said]


@asynccontextmanager
async def open_session_harness(
    folder: Path,
    *,
    agents: Sequence[Agent] = (LEAD, HELP),
    limits: RunLimits | None = None,
    lead: Scripted | None = None,
    help: Scripted | None = None,
) -> AsyncGenerator[SessionHarness]:
    """A house with a lead and a help, each with a model of its own."""
    async with await SessionStore.open(folder / "sessions.db", durable=False) as store:
        made = SessionHarness(store, agents, limits or RunLimits())
        made.models = {"lead": lead or Scripted(), "help": help or Scripted()}
        yield made


def results(records: Sequence[Record]) -> list[ToolResult]:
    """What the calls of a run gave back."""
    return [record.event.result for record in records if isinstance(record.event, CallFinished)]


def end_of(records: Sequence[Record]) -> RunFinished:
    """How a run ended."""
    end = records[-1].event
    assert isinstance(end, RunFinished)
    return end


def agent(name: str, *capabilities: str, **settings: JSON) -> Agent:
    """An agent with these capabilities and limits."""
    held = frozenset(capabilities or ALL)
    return Agent(name, "scripted/model", f"You are {name}.", held, LoopSettings(**settings))
