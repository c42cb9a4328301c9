"""The report receiver: takes in all messages of edges and passes them on.

Invalid, forged and retained messages are counted and dropped; no message stops the process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from secrets import token_hex
from typing import Protocol

from evoclaw.core.eager import begin
from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.surveying import Surveying
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.outbox import CLOSED_STATES, CommandBacklog, StoredCommand, WantedCommand
from evoclaw.transport.requests import Requests
from evoclaw.transport.topics import BROADCAST, TopicKind, every, read_topic
from evoclaw.transport.wire import (
    WIRE_VERSION,
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
"""Between two checks for edges that missed their heartbeats."""
MOST_EDGES = 10_000
"""Further edges are ignored: any client of the broker can choose a name."""
AT_ONCE = 2_000
"""Further messages are dropped; edges repeat what was not answered."""


class Ledger(CommandBacklog, Protocol):
    """The stored commands of edges."""

    async def known(self, request_ids: Sequence[str]) -> Mapping[str, str]:
        """The states of those commands that are stored, by id."""
        ...

    async def cancelling(self, agent_id: str) -> Sequence[WantedCommand]:
        """The commands that an edge must cancel."""
        ...

    async def get(self, request_id: str) -> StoredCommand | None:
        """The command with an id."""
        ...


class Inspector(Protocol):
    """Verifies and stores receipts; `ReceiptVerifier` is one."""

    async def inspect(self, report: Report, asked: StoredCommand | None) -> Report:
        """The report with the verdict on its receipt, or a refusal in its place."""
        ...


class Reception:
    """Receives the messages of all edges on the orchestrator's link."""

    def __init__(self, link: Link, fleet: Fleet, requests: Requests, ledger: Ledger) -> None:
        self._link, self._fleet, self._requests, self._ledger = link, fleet, requests, ledger
        self._name = f"orchestrator-{token_hex(8)}"
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """Messages that were dropped, by reason."""
        self._survey = Surveying(fleet, requests, self.counts)
        self.guests: Callable[[Report], Coroutine[object, object, None]] | None = None
        """Handles edges that want to join; None if this orchestrator does not pair edges."""
        self.receipts: Inspector | None = None
        """Verifies the receipts of results; None passes them on unverified."""
        self.is_connected = False
        """Whether the broker is connected."""

    async def run(self) -> None:
        """Receive until cancelled; then all tasks have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._link.run(self))
                group.create_task(self._sweep())
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    @property
    def client_id(self) -> str:
        """A new id each time: two orchestrators never disconnect each other."""
        return self._name

    @property
    def subscriptions(self) -> Sequence[str]:
        """All topics of edges."""
        return every(TopicKind.REPORTS), every(TopicKind.STATUS), every(TopicKind.CAPABILITIES)

    def will(self) -> Will | None:
        """None: edges do not depend on the presence of an orchestrator."""
        return None

    async def connected(self) -> None:
        """Ask all edges for a hello: messages were missed meanwhile."""
        self.is_connected = True
        try:
            await self._link.publish(BROADCAST, encode(Command("hello")))
        except LinkDown:
            self.counts["unsaid hello"] += 1

    def disconnected(self, reason: str) -> None:
        """Count it; the link reconnects."""
        self.is_connected = False
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Read a message and handle it; invalid ones are counted."""
        found = read_topic(message.topic)
        if found is None:
            self.counts["no agent's topic"] += 1
            return
        agent_id, kind = found
        if self._fleet.find(agent_id) is None and self._fleet.size >= MOST_EDGES:
            self.counts["too many edges"] += 1
            return
        try:
            self._take(agent_id, kind, message)
        except WireError as problem:
            self.counts[f"unreadable {kind}: {problem.kind}"] += 1

    def _take(self, agent_id: str, kind: TopicKind, message: Incoming) -> None:
        if kind is TopicKind.STATUS:
            if message.payload and not self._fleet.status(
                read_status(agent_id, message.payload), retained=message.retained
            ):
                self.counts["stale status"] += 1
        elif kind is TopicKind.CAPABILITIES:
            if message.payload:
                self._fleet.advert(read_advert(agent_id, message.payload))
                self._look_at(agent_id)
        elif message.retained:
            self.counts["retained report"] += 1
        elif kind is TopicKind.REPORTS:
            self._report(read_report(agent_id, message.payload))

    def _report(self, report: Report) -> None:
        match report.report_type:
            case ReportType.HELLO:
                self._spawn(self._greet(report.agent_id, convert(report.payload, Hello)))
            case ReportType.HEARTBEAT:
                self._beat(report.agent_id, convert(report.payload, Heartbeat))
            case ReportType.JOIN:
                if self.guests is not None:
                    self._spawn(self.guests(report))
            case ReportType.RESULT | ReportType.ERROR:
                self._end(report)
            case _:
                self._requests.deliver(report)

    def _end(self, report: Report) -> None:
        """Deliver an outcome; the verdict on its receipt is never taken from the edge."""
        report.payload.pop("checked", None)
        if self.receipts is None:
            self._requests.deliver(report)
            return
        unfinished = begin(self._inspect(self.receipts, report))
        if unfinished is not None:
            self._spawn(unfinished)

    async def _inspect(self, receipts: Inspector, report: Report) -> None:
        try:
            asked = await self._ledger.get(report.request_id)
            report = await receipts.inspect(report, asked)
        except EvoClawError:
            self.counts["the store failed"] += 1  # not acknowledged, so the edge reports it again
            return
        self._requests.deliver(report)

    def _beat(self, agent_id: str, heartbeat: Heartbeat) -> None:
        if not self._fleet.beat(agent_id, heartbeat):
            self.counts["stale heartbeat"] += 1
            return
        self._look_at(agent_id)
        member = self._fleet.member(agent_id)
        if not member.advertised and member.offered is None:
            # Its advert was lost; its tools can be fetched without it.
            self.counts["advert missed"] += 1
            self._spawn(self._survey.look_at(agent_id))
        self._requests.edge_queues.on_heartbeat(agent_id, heartbeat.room)
        if member.greeted != (heartbeat.boot_id, heartbeat.counter):
            # Its hello, or our welcome, was lost.
            self._spawn(self._ask_for_hello(agent_id))

    async def _ask_for_hello(self, agent_id: str) -> None:
        self.counts["hello missed"] += 1
        await self._requests.send(agent_id, Command("hello"))

    async def _greet(self, agent_id: str, hello: Hello) -> None:
        """Answer a hello: acknowledge ended commands, and cancel those that are not wanted."""
        if not hello.v_min <= WIRE_VERSION <= hello.v_max:
            problem = (
                f"its wire versions {hello.v_min} to {hello.v_max} do not include "
                f"{WIRE_VERSION}, the version of this orchestrator; update the edge"
            )
            self._fleet.quarantine(agent_id, problem, {})
            self.counts["another version"] += 1
            return
        if not self._fleet.alive(agent_id, hello.boot_id, hello.counter):
            self.counts["stale hello"] += 1
            return
        self._fleet.beats(agent_id, hello.heartbeat_s)
        self._look_at(agent_id)
        try:
            await self._answer(agent_id, hello)
        except EvoClawError:
            self.counts["the store failed"] += 1  # no welcome, so the edge says hello again

    async def _answer(self, agent_id: str, hello: Hello) -> None:
        reported = {*hello.running, *hello.finished}
        states = await self._ledger.known(sorted(reported))
        cancels = ("cancelling", *CLOSED_STATES)
        welcome = Welcome(
            hello.boot_id,
            hello.counter,
            self._requests.clock(),
            hello.asked,
            acks=[id_ for id_ in hello.finished if states.get(id_) in CLOSED_STATES],
            cancels=[id_ for id_ in hello.running if states.get(id_) in cancels],
        )
        await self._requests.send(agent_id, Command("welcome", as_payload(welcome)))
        member = self._fleet.member(agent_id)
        if member.journal not in ("", hello.journal):
            await self._forgotten(agent_id, reported)
        member.journal = hello.journal
        member.greeted = (hello.boot_id, hello.counter)
        self._requests.edge_queues.on_hello(agent_id, reported, hello.room)
        for command in await self._ledger.cancelling(agent_id):
            if command.request_id not in reported:
                self._requests.spawn(self._requests.cancel(agent_id, command.request_id))

    async def _forgotten(self, agent_id: str, there: Collection[str]) -> None:
        """An edge lost its journal: the outcome of the commands sent before is unknown."""
        self.counts["journals lost"] += 1
        for command in await self._ledger.wanted(agent_id, self._requests.clock()):
            if command.state != "queued" and command.request_id not in there:
                await self._requests.give_up(agent_id, command.request_id, "call")

    def _look_at(self, agent_id: str) -> None:
        if self._fleet.is_online(agent_id) and self._fleet.outdated(agent_id):
            self._spawn(self._survey.look_at(agent_id))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self._fleet.sweep()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        if len(self._tasks) >= AT_ONCE:
            self.counts["too much at once"] += 1
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
