"""Agents with scripted models behind a real socket, for tests of what their callers see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from evoclaw.api.app import create_app
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.core.agent import Agent, Field, FieldType, LoopSettings
from evoclaw.core.events import Replied, ReplyEvent, TextDelta
from evoclaw.core.messages import JSON, Reply, Usage
from evoclaw.core.ports import AllowAll, Approver, NoApprover, Policy, Ports, Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.people.access import AccessControl
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.scripted import Scripted, ScriptStep
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.governance import approvals, tokens
from evoclaw.store.governance.tokens import TokenStore
from evoclaw.store.runs import queue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool

HERE = ServerSettings(port=0, heartbeat_s=0.2)
LEAD = Agent("lead", "scripted/model", "You lead.", frozenset({"*"}))
TALKER = Agent("talker", "scripted/model")
SUMS = Agent(
    "sums",
    "scripted/model",
    settings=LoopSettings(output_fields=("total",)),
    inputs={"a": Field(FieldType.INTEGER, required=True), "b": Field(FieldType.INTEGER)},
)


class HeldModel:
    """A model that begins to speak, and goes on when it is told to."""

    model = "scripted/slow"
    profile = Profile()

    def __init__(self) -> None:
        self.asked, self.goes_on, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        try:
            yield TextDelta("Well")
            self.asked.set()
            await self.goes_on.wait()
            yield TextDelta(", yes.")
            yield Replied(Reply("Well, yes.", usage=Usage(10, 5)))
        finally:
            self.closed.set()


@dataclass
class ChatService:
    """What a test can reach."""

    url: str
    runs: Runs
    talks: Conversations
    access: AccessControl
    house: ChatHarness

    async def token(self, *scopes: str, user: str = "ada", tenant: str = "local") -> str:
        """A token that opens just this."""
        held = scopes or ("agents:invoke",)
        return (await self.access.create("test", tenant, user, held))[1]

    async def http(self, *scopes: str) -> httpx.AsyncClient:
        """A client with a token."""
        bearer = await self.token(*scopes)
        return httpx.AsyncClient(
            base_url=self.url, headers={"authorization": f"Bearer {bearer}"}, timeout=20
        )


@dataclass
class ChatHarness:
    """What all runs are given."""

    model: Provider
    policy: Policy = field(default_factory=AllowAll)
    approver: Approver = field(default_factory=NoApprover)
    ran: list[str] = field(default_factory=list[str])
    body: Callable[[str], Awaitable[str]] | None = None

    def executor(self) -> LocalExecutor:
        """One tool of ours."""

        @tool("shell", resources=(), timeout=60, idempotent=True)
        async def work(what: str = "") -> str:
            """Work."""
            self.ran.append(what)
            return await self.body(what) if self.body else f"worked on {what}"

        return LocalExecutor((work,))

    def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        return Ports(self.model, self.executor(), self.policy, self.approver)

    def offered(self) -> Sequence[Tool]:
        return self.executor().tools()


@asynccontextmanager
async def serve_agents(
    folder: Path,
    *steps: ScriptStep,
    model: Provider | None = None,
    agents: Sequence[Agent] = (LEAD, TALKER, SUMS),
    settings: ServerSettings = HERE,
    embed: Callable[[Mapping[str, JSON]], Awaitable[bytes]] | None = None,
) -> AsyncGenerator[ChatService]:
    """Serve agents while the block runs."""
    async with AsyncExitStack() as stack:
        schemas = (session_tables.SCHEMA, approvals.SCHEMA, queue.SCHEMA, tokens.SCHEMA)
        database = await open_database(folder / "evoclaw.db", schemas, durable=False)
        stack.push_async_callback(database.close)
        house = ChatHarness(model or Scripted(*steps))
        talks = Conversations(
            SessionStore(database), {agent.name: agent for agent in agents}, house.equip
        )
        runs = Runs(talks, agent=agents[0].name)
        access = AccessControl(TokenStore(database))
        app = create_app(
            ApiDependencies(
                access=access,
                settings=settings,
                runs=runs,
                conversations=talks,
                tools=house.offered,
                embed=embed,
            )
        )
        await stack.enter_async_context(runs.serving())
        url = await stack.enter_async_context(serving(app, settings))
        yield ChatService(url, runs, talks, access, house)


def script_of(house: ChatService) -> Scripted:
    """The script of its model, with what it was asked."""
    assert isinstance(house.house.model, Scripted)
    return house.house.model
