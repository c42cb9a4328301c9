"""The orchestrator's side of the fleet: connected, listening, and having things done elsewhere."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from evoclaw.core.calls import prepare
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import LOCAL, Principal
from evoclaw.core.messages import JSON, ToolCall, ToolResult
from evoclaw.core.tools import Context, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.executors.edge import EdgeExecutor, Grants, ungranted
from evoclaw.orchestrator.cleaning import one_line
from evoclaw.orchestrator.fleet.delegation import Delegated
from evoclaw.orchestrator.fleet.edge_call import EdgeCall
from evoclaw.orchestrator.fleet.fetching import fetch
from evoclaw.orchestrator.fleet.fleet import Fleet, Permit, Presence, permit_all
from evoclaw.orchestrator.fleet.jobs import Asked, FleetJobs, Job, look_up
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.fleet.reception import Ledger, Reception
from evoclaw.orchestrator.fleet.tidying import Shelf, Tidying
from evoclaw.store.calls.command_values import QueueFull
from evoclaw.transport.edge_queues import PROGRESS_TIMEOUT_S, PUBLISH_RETRY_DELAYS_S
from evoclaw.transport.link import Link
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import DEFAULT_JOB_TIMEOUT_S, Command, Outcome

QUIET = 1.2
"""Seconds without news after which everybody who is there has said hello."""


GATHERING = 0.02
"""Seconds between two looks at who is missing: a large fleet changes much more often."""


class NotThere(EvoClawError):
    """An edge that was asked for is not online."""

    def __init__(self, agent_id: str, online: Sequence[str]) -> None:
        there = ", ".join(online) or "none"
        super().__init__(f"agent {agent_id!r} is not online; online: {there}")


class Store(Outbox, Ledger, Shelf, Protocol):
    """Where commands are kept."""

    def of(self, tenant: str) -> Asked:
        """What one tenant asked for."""
        ...


class Orchestrator:
    """The fleet, and the ways to have it do something."""

    def __init__(
        self,
        link: Link,
        store: Store,
        *,
        grants: Grants = ungranted,
        heartbeat: float = 30.0,
        permit: Permit = permit_all,
        retry_delays: Sequence[float] = PUBLISH_RETRY_DELAYS_S,
        progress_timeout: float = PROGRESS_TIMEOUT_S,
    ) -> None:
        """Choose the parts.

        Args:
            link: The way to the broker.
            store: Where commands are kept.
            grants: Who signs what edges are asked to do.
            heartbeat: Seconds between two signs of life of an edge.
            permit: Which of an edge's tools may be used.
            retry_delays: Seconds until what nobody accepted is published again.
            progress_timeout: Seconds without a word after which what was accepted counts as lost.
        """
        self.fleet = Fleet(heartbeat=heartbeat, changed=self._tell, permit=permit)
        self._grants, self._store = grants, store
        self.requests = Requests(
            link,
            store,
            reachable=self.fleet.is_online,
            full=QueueFull,
            sign=self._sign,
            retry_delays=retry_delays,
            progress_timeout=progress_timeout,
        )
        self.reception = Reception(link, self.fleet, self.requests, store)
        self._tidying = Tidying(store, self.requests)
        self._listeners: list[Callable[[Presence], None]] = []

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Be connected while the block runs; a broker that is away is tried again and again."""
        serving = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            await self.requests.close()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reception.run())
            group.create_task(self._tidying.run())

    def listen(self, listener: Callable[[Presence], None]) -> None:
        """Have somebody told who comes and goes."""
        self._listeners.append(listener)

    async def wait_for(self, agent_id: str, seconds: float, *, tools: bool = True) -> Member:
        """An edge, when it is online and its tools are known; `NotThere` if that takes too long."""

        def there() -> bool:
            return self._is_there(agent_id) if tools else self.fleet.is_online(agent_id)

        try:
            async with asyncio.timeout(seconds):
                while not there():
                    await self.fleet.change()
        except TimeoutError:
            names = [member.agent_id for member in self.fleet.online()]
            raise NotThere(one_line(agent_id), names) from None
        return self.fleet.member(agent_id)

    async def settle(self, seconds: float) -> None:
        """Wait until those who are there have said so: until somebody is, and no more come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.fleet.online():
                    await self.fleet.change()
                while True:
                    async with asyncio.timeout(QUIET):
                        await self.fleet.change()

    async def gather(self, agents: Collection[str], seconds: float) -> None:
        """Wait until all of some edges are there and their tools are known, but only so long."""
        missing = set(agents)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while missing := {one for one in missing if not self._is_there(one)}:
                    await self.fleet.change()
                    await asyncio.sleep(GATHERING)

    def _is_there(self, agent_id: str) -> bool:
        member = self.fleet.find(agent_id)
        return member is not None and member.online and member.is_known

    def edge(self, agent_id: str, *, queue: float = 60.0) -> EdgeExecutor:
        """The tools of one edge, run there."""

        def tools() -> Sequence[Tool]:
            member = self.fleet.find(agent_id)
            return member.tools if member is not None else ()

        return EdgeExecutor(agent_id, tools, self.requests, grants=self._grants, queue=queue)

    def edge_call(self, held: frozenset[str]) -> EdgeCall:
        """The tool that asks any edge, in the name of an agent with these capabilities."""
        return EdgeCall(self.fleet, self.requests, held=held, grants=self._grants)

    def delegated(self, besides: Collection[str] = ()) -> Delegated:
        """The tools of all edges, but for those with these names, each run on one that has it."""
        return Delegated(self.fleet, self.edge, self.requests.agent_of, besides=besides)

    async def start_job(
        self,
        agent_id: str,
        tool: str,
        arguments: dict[str, JSON],
        *,
        seconds: float = DEFAULT_JOB_TIMEOUT_S,
        idle: float | None = None,
        principal: Principal = LOCAL,
    ) -> ToolResult:
        """Have an edge begin something that goes on by itself; the result's details name it.

        Args:
            agent_id: The edge.
            tool: One of its tools.
            arguments: What it is given.
            seconds: How long it may take, a day at most.
            idle: How long it may say nothing.
            principal: On whose behalf; its tenant alone is told of it.
        """
        edge = self.edge(agent_id)
        asked = ToolCall("job", tool, msgspec.json.encode(arguments).decode())
        request_id = f"{secrets.token_hex(16)}.1.0.1"
        context = Context(principal=principal)
        tools = Toolset.of(edge.tools())
        call = prepare(asked, tools, request_id=request_id, context=context)
        if isinstance(call, ToolResult):
            return call
        return await edge.start(call, seconds=seconds, idle=idle)

    async def job(self, agent_id: str, job_id: str, *, tenant: str = LOCAL.tenant) -> Job:
        """How a job stands: its result if it has ended, else what its edge says of it."""
        return await look_up(self._store.of(tenant), self.requests, agent_id, job_id)

    def jobs(self) -> FleetJobs:
        """The jobs of the fleet, as a tool sees them."""
        return FleetJobs(self._store.of, self.requests)

    async def fetch(self, agent_id: str, handle: str, path: Path) -> int:
        """Copy a big output from an edge to a file; how many bytes it has."""
        return await fetch(self.edge(agent_id), handle, path, self.requests.max_payload)

    async def say(
        self, agent_id: str, name: str, payload: dict[str, JSON] | None = None, seconds: float = 10
    ) -> Outcome:
        """Send a command that may be sent twice, and await its answer."""
        command = Command(name, payload or {}, f"{name}-{secrets.token_hex(8)}")
        return await self.requests.query(agent_id, command, seconds)

    def _sign(self, agent_id: str, command: Command) -> Command:
        return replace(command, grant=self._grants(agent_id, command, None))

    def _tell(self, change: Presence) -> None:
        for listener in self._listeners:
            listener(change)
