"""The orchestrator's side of the fleet: connected, listening, and having things done elsewhere."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
from evoclaw.executors.edge import EdgeExecutor, Grants, ungranted
from evoclaw.orchestrator.cleaning import one_line
from evoclaw.orchestrator.edge_call import EdgeCall
from evoclaw.orchestrator.fleet import Fleet, Member, Permit, Presence
from evoclaw.orchestrator.reception import Backlog, Reception
from evoclaw.transport.link import Link
from evoclaw.transport.requests import Outbox, Requests
from evoclaw.transport.wire import Command, Outcome


class NotThere(EvoClawError):
    """An edge that was asked for is not online."""

    def __init__(self, agent_id: str, online: Sequence[str]) -> None:
        there = ", ".join(online) or "none"
        super().__init__(f"agent {agent_id!r} is not online; online: {there}")


class Store(Outbox, Backlog, Protocol):
    """Where commands are kept."""


class Orchestrator:
    """The fleet, and the ways to have it do something."""

    def __init__(
        self,
        link: Link,
        store: Store,
        *,
        grants: Grants = ungranted,
        heartbeat: float = 30.0,
        permit: Permit = lambda agent_id, tools: (tools, ""),
    ) -> None:
        self.fleet = Fleet(heartbeat=heartbeat, changed=self._tell, permit=permit)
        self.requests = Requests(link, store, reachable=self.fleet.is_online)
        self.reception = Reception(link, self.fleet, self.requests, store)
        self._grants = grants
        self._listeners: list[Callable[[Presence], None]] = []

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Be connected while the block runs; a broker that is away is tried again and again."""
        serving = asyncio.create_task(self.reception.run())
        try:
            yield
        finally:
            await self.requests.close()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    def listen(self, listener: Callable[[Presence], None]) -> None:
        """Have somebody told who comes and goes."""
        self._listeners.append(listener)

    async def wait_for(self, agent_id: str, seconds: float, *, tools: bool = True) -> Member:
        """An edge, when it is online and its tools are known; `NotThere` if that takes too long."""

        def there() -> bool:
            member = self.fleet.find(agent_id)
            known = member is not None and not (tools and self.fleet.outdated(agent_id))
            return known and self.fleet.is_online(agent_id)

        try:
            async with asyncio.timeout(seconds):
                while not there():
                    await self.fleet.change()
        except TimeoutError:
            names = [member.agent_id for member in self.fleet.online()]
            raise NotThere(one_line(agent_id), names) from None
        return self.fleet.member(agent_id)

    def edge(self, agent_id: str, *, queue: float = 60.0) -> EdgeExecutor:
        """The tools of one edge, run there."""

        def tools() -> Sequence[Tool]:
            member = self.fleet.find(agent_id)
            return member.tools if member is not None else ()

        return EdgeExecutor(agent_id, tools, self.requests, grants=self._grants, queue=queue)

    def edge_call(self, held: frozenset[str]) -> EdgeCall:
        """The tool that asks any edge, in the name of an agent with these capabilities."""
        return EdgeCall(self.fleet, self.requests, held=held, grants=self._grants)

    async def say(
        self, agent_id: str, name: str, payload: dict[str, JSON] | None = None, seconds: float = 10
    ) -> Outcome:
        """Send a command that may be sent twice, and await its answer."""
        command = Command(name, payload or {}, f"{name}-{secrets.token_hex(8)}")
        return await self.requests.talk(agent_id, command, seconds)

    def _tell(self, change: Presence) -> None:
        for listener in self._listeners:
            listener(change)
