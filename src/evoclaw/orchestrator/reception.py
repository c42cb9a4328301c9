"""Where everything from the edges arrives, and goes to whom it concerns.

Garbage, forgeries and rubbish that a broker kept are counted and dropped; nothing that arrives here
stops the process.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

import msgspec

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import is_array, is_object
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet import Fleet
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.requests import Requests
from evoclaw.transport.topics import BROADCAST, Kind, every, read_topic
from evoclaw.transport.wire import (
    Command,
    Heartbeat,
    Hello,
    Report,
    ReportType,
    Welcome,
    WireError,
    as_payload,
    convert,
    encode,
    read_advert,
    read_report,
    read_status,
)

SWEEP = 5.0
"""Seconds between two looks for edges that fell silent."""
PAGES = 50
"""Answers to `tools_list` that are read from one edge."""


class Wanted(Protocol):
    """A stored command that an edge should still get."""

    @property
    def request_id(self) -> str:
        """Its id."""
        ...

    @property
    def payload(self) -> bytes:
        """The command as it was encoded."""
        ...


class Backlog(Protocol):
    """What the store still has for an edge."""

    async def wanted(self, agent_id: str, now: float) -> Sequence[Wanted]:
        """The commands without an outcome, oldest first; the expired ones are left out."""
        ...

    async def known(self, request_ids: Sequence[str]) -> Mapping[str, str]:
        """The state of those commands that are ours."""
        ...

    async def mark(self, request_id: str, state: str) -> object:
        """Note how far a command has come."""
        ...


class Reception:
    """The orchestrator's end of the link."""

    def __init__(self, link: Link, fleet: Fleet, requests: Requests, backlog: Backlog) -> None:
        self._link, self._fleet, self._requests, self._backlog = link, fleet, requests, backlog
        self._name = f"orchestrator-{secrets.token_hex(8)}"
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """What was dropped, by reason."""
        self.guests: Callable[[Report], Coroutine[object, object, None]] | None = None
        """Who is told of edges that want to join; nobody unless this orchestrator lets them in."""

    async def run(self) -> None:
        """Be there until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._link.run(self))
            group.create_task(self._sweep())

    @property
    def client_id(self) -> str:
        """Another one each time: two orchestrators never end each other's connection."""
        return self._name

    @property
    def subscriptions(self) -> Sequence[str]:
        """Everything that edges say."""
        return every(Kind.REPORTS), every(Kind.STATUS), every(Kind.CAPABILITIES)

    def will(self) -> Will | None:
        """None: edges do not care who listens, only whether they are heard."""
        return None

    async def connected(self) -> None:
        """Ask who is there: what was said meanwhile is not known."""
        try:
            await self._link.publish(BROADCAST, encode(Command("hello")))
        except LinkDown:
            self.counts["unsaid hello"] += 1

    def disconnected(self, reason: str) -> None:
        """Count it; the link tries again."""
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Read a message and hand it on."""
        found = read_topic(message.topic)
        if found is None:
            self.counts["no agent's topic"] += 1
            return
        agent_id, kind = found
        try:
            self._take(agent_id, kind, message)
        except WireError as problem:
            self.counts[f"unreadable {kind}: {problem.kind}"] += 1

    def _take(self, agent_id: str, kind: Kind, message: Incoming) -> None:
        if kind is Kind.STATUS:
            if message.payload and not self._fleet.status(
                read_status(agent_id, message.payload), retained=message.retained
            ):
                self.counts["stale status"] += 1
        elif kind is Kind.CAPABILITIES:
            if message.payload and self._fleet.advert(read_advert(agent_id, message.payload)):
                self._fetch_if_there(agent_id)
        elif message.retained:
            self.counts["retained report"] += 1
        else:
            self._report(read_report(agent_id, message.payload))

    def _report(self, report: Report) -> None:
        if report.report_type is ReportType.HELLO:
            self._spawn(self._greet(report.agent_id, convert(report.payload, Hello)))
        elif report.report_type is ReportType.JOIN:
            if self.guests is not None:
                self._spawn(self.guests(report))
        elif report.report_type is ReportType.HEARTBEAT:
            if not self._fleet.beat(report.agent_id, convert(report.payload, Heartbeat)):
                self.counts["stale heartbeat"] += 1
        else:
            self._requests.deliver(report)

    async def _greet(self, agent_id: str, hello: Hello) -> None:
        """Answer a hello: what is settled, what is off, what is still wanted."""
        if not self._fleet.alive(agent_id, hello.boot_id, hello.counter):
            self.counts["stale hello"] += 1
            return
        self._fetch_if_there(agent_id)
        states = await self._backlog.known([*hello.running, *hello.finished])
        welcome = Welcome(
            hello.boot_id,
            hello.counter,
            time.time(),
            acks=[one for one in hello.finished if states.get(one) == "settled"],
            cancels=[one for one in hello.running if states.get(one) in ("cancelling", "settled")],
        )
        await self._requests.send(agent_id, Command("welcome", as_payload(welcome)))
        there = {*hello.running, *hello.finished}
        for command in await self._backlog.wanted(agent_id, time.time()):
            if command.request_id not in there:
                await self._backlog.mark(command.request_id, "sent")
                await self._requests.send(agent_id, command.payload)

    def _fetch_if_there(self, agent_id: str) -> None:
        if self._fleet.is_online(agent_id) and self._fleet.outdated(agent_id):
            self._spawn(self._fetch(agent_id))

    async def _fetch(self, agent_id: str) -> None:
        """Get the schemas of an edge's tools, page by page."""
        tools: list[Tool] = []
        offset: int | None = 0
        for _ in range(PAGES):
            asked = Command("tools_list", {"offset": offset}, f"tools-{secrets.token_hex(8)}")
            try:
                outcome = await self._requests.talk(agent_id, asked)
            except ToolFailure:
                self.counts["tools unanswered"] += 1
                return
            page = outcome.result if is_object(outcome.result) else {}
            found = page.get("tools")
            tools += [one for one in map(_tool, found if is_array(found) else []) if one]
            offset = page.get("next")
            if not isinstance(offset, int):
                break
        self._fleet.tools(agent_id, tools)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self._fleet.sweep()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tool(value: object) -> Tool | None:
    try:
        return msgspec.convert(value, Tool)
    except msgspec.ValidationError:
        return None
