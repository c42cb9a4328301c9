"""The report receiver: takes in all messages of edges and passes them on.

Invalid, forged and retained messages are counted and dropped; no message stops the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from secrets import token_hex

from evoclaw.core.commands import FINAL_STATES, CommandRow
from evoclaw.core.eager import start_eagerly
from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.parked_reports import ParkedReports
from evoclaw.orchestrator.fleet.tool_discovery import ToolDiscovery
from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.requests import Requests
from evoclaw.transport.topics import BROADCAST, TopicKind, every, read_topic
from evoclaw.transport.wire import (
    WIRE_VERSION,
    Command,
    Heartbeat,
    Hello,
    Report,
    ReportType,
    Status,
    Welcome,
    WireError,
    as_payload,
    convert,
    encode,
    read_advert,
    read_heartbeat,
    read_report,
    read_status,
)

logger = logging.getLogger(__name__)
MAX_DAMAGE_CHARS = 500
"""Characters of what an edge says about its damage."""
SILENCE_CHECK_INTERVAL_S = 5.0
"""Between two checks for edges that missed their heartbeats."""
MAX_EDGES = 10_000
"""Further edges are ignored: any client of the broker can choose a name."""
MAX_CONCURRENT_TASKS = 2_000
"""Further messages are dropped; edges repeat what was not answered."""


class ReportReceiver:
    """Receives the messages of all edges on the orchestrator's link."""

    def __init__(
        self,
        link: Link,
        fleet: Fleet,
        requests: Requests,
        commands: CommandStore,
        *,
        refusal: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`refusal` says why an edge may take no part: its messages are dropped."""
        self._refusal = refusal
        self._link, self._fleet, self._requests, self._commands = link, fleet, requests, commands
        self._client_id = f"orchestrator-{token_hex(8)}"
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """Messages that were dropped, by reason."""
        self._tool_discovery = ToolDiscovery(fleet, requests, self.counts)
        self._parked = ParkedReports(
            commands, self.counts, spawn=self._spawn, take=self._take_parked
        )
        self.on_join: Callable[[Report], Coroutine[object, object, None]] | None = None
        """Handles edges that want to join; None if this orchestrator does not pair edges."""
        self.on_call: Callable[[Report], None] | None = None
        """Handles calls of the models of edges; None ignores them."""
        self.receipts: ReceiptVerifier | None = None
        """Verifies the receipts of results; None passes them on unverified."""
        self.on_damage: Callable[[str, str], None] = lambda agent_id, damage: None
        """Called with an edge and what of its data was damaged, once."""
        self.is_connected = False
        """Whether the broker is connected."""

    async def run(self) -> None:
        """Receive until cancelled; then all tasks have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._link.run(self))
                group.create_task(self._check_silence())
        finally:
            self._parked.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    @property
    def client_id(self) -> str:
        """A new id each time: two orchestrators never disconnect each other."""
        return self._client_id

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
        if self._fleet.find(agent_id) is None and self._fleet.size >= MAX_EDGES:
            self.counts["too many edges"] += 1
            return
        try:
            self._handle(agent_id, kind, message)
        except WireError as problem:
            self.counts[f"unreadable {kind}: {problem.kind}"] += 1

    def _handle(self, agent_id: str, kind: TopicKind, message: Incoming) -> None:
        if self._refusal(agent_id):
            self._on_refused(agent_id, kind, message)
        elif kind is TopicKind.STATUS:
            if message.payload:
                self._on_status(read_status(agent_id, message.payload), retained=message.retained)
        elif kind is TopicKind.CAPABILITIES:
            if message.payload:
                self._fleet.on_advert(read_advert(agent_id, message.payload))
                self._refresh_tools(agent_id)
        elif message.retained:
            self.counts["retained report"] += 1
        elif kind is TopicKind.REPORTS:
            self._on_report(read_report(agent_id, message.payload), len(message.payload))

    def _on_refused(self, agent_id: str, kind: TopicKind, message: Incoming) -> None:
        """Drop a message of an edge that was revoked, unless it asks to join again."""
        self._fleet.mark_offline(agent_id)
        if kind is TopicKind.REPORTS and not message.retained:
            report = read_report(agent_id, message.payload)
            if report.report_type is ReportType.JOIN:
                self._on_report(report)
                return
        self.counts["refused"] += 1

    def _on_status(self, status: Status, *, retained: bool) -> None:
        if not self._fleet.on_status(status, retained=retained):
            self.counts["stale status"] += 1
        elif self._fleet.is_online(status.agent_id) and not status.boot_id:
            # A basic edge says no hello: commands that wait for it are sent now.
            self._requests.edge_queues.on_heartbeat(status.agent_id, None)

    def _on_report(self, report: Report, size: int = 0) -> None:
        match report.report_type:
            case ReportType.HELLO:
                self._spawn(self._on_hello(report.agent_id, convert(report.payload, Hello)))
            case ReportType.HEARTBEAT:
                self._on_heartbeat(report.agent_id, read_heartbeat(report))
            case ReportType.JOIN:
                if self.on_join is not None:
                    self._spawn(self.on_join(report))
            case ReportType.CALL:
                if self.on_call is not None:
                    self.on_call(report)
            case ReportType.RESULT | ReportType.ERROR:
                self._on_outcome(report, size)
            case _:
                self._requests.deliver(report)

    def _on_outcome(self, report: Report, size: int) -> None:
        """Deliver an outcome; the verdict on its receipt is never taken from the edge."""
        report.payload.pop("checked", None)
        if not report.request_id:
            asked = self._request_id_for(report)
            if not asked:
                self.counts["without a request id"] += 1
                return
            report.payload["request_id"] = asked
        ours = self._requests.was_asked_here(report.agent_id, report.request_id)
        if not ours and self._commands.is_shared and self._parked.park(report, size):
            if self.receipts is not None:
                self.receipts.noted.note(report)
            return
        if self.receipts is None:
            self._requests.deliver(report)
            return
        unfinished = start_eagerly(self._inspect(self.receipts, report))
        if unfinished is not None:
            self._spawn(unfinished)

    async def _take_parked(self, report: Report, row: CommandRow | None) -> None:
        if self.receipts is None:
            self._requests.deliver(report)
        else:
            await self._deliver_inspected(self.receipts, report, row)

    def _request_id_for(self, report: Report) -> str:
        """The command that an outcome without an id answers: the only one, of a basic edge."""
        if self._fleet.guarantees_delivery(report.agent_id):
            return ""
        return self._requests.only_pending(report.agent_id)

    async def _inspect(self, receipts: ReceiptVerifier, report: Report) -> None:
        try:
            asked = self._requests.asked(report.agent_id, report.request_id)
            if asked is None:
                asked = await self._commands.get(report.request_id)
        except EvoClawError:
            self.counts["the store failed"] += 1  # not acknowledged, so the edge reports it again
            return
        await self._deliver_inspected(receipts, report, asked)

    async def _deliver_inspected(
        self, receipts: ReceiptVerifier, report: Report, asked: Command | CommandRow | None
    ) -> None:
        try:
            report = await receipts.inspect(report, asked)
        except EvoClawError:
            self.counts["the store failed"] += 1  # not acknowledged, so the edge reports it again
            return
        self._requests.deliver(report)

    def _on_heartbeat(self, agent_id: str, heartbeat: Heartbeat) -> None:
        if not self._fleet.on_heartbeat(agent_id, heartbeat):
            self.counts["stale heartbeat"] += 1
            return
        self._refresh_tools(agent_id)
        member = self._fleet.member(agent_id)
        if not member.guarantees_delivery:
            self._requests.edge_queues.on_heartbeat(agent_id, heartbeat.room)
            return
        if not member.advertised and member.offered is None:
            # Its advert was lost; its tools can be fetched without it.
            self.counts["advert missed"] += 1
            self._spawn(self._tool_discovery.refresh(agent_id))
        self._requests.edge_queues.on_heartbeat(agent_id, heartbeat.room)
        if member.last_hello != (heartbeat.boot_id, heartbeat.counter):
            # Its hello, or our welcome, was lost.
            self._spawn(self._ask_for_hello(agent_id))

    async def _ask_for_hello(self, agent_id: str) -> None:
        self.counts["hello missed"] += 1
        await self._requests.send(agent_id, Command("hello"))

    async def _on_hello(self, agent_id: str, hello: Hello) -> None:
        """Answer a hello: acknowledge ended commands, and cancel those that are not wanted."""
        if not hello.v_min <= WIRE_VERSION <= hello.v_max:
            problem = (
                f"its wire versions {hello.v_min} to {hello.v_max} do not include "
                f"{WIRE_VERSION}, the version of this orchestrator; update the edge"
            )
            self._fleet.quarantine(agent_id, problem, {})
            self.counts["another version"] += 1
            return
        if not self._fleet.on_life_sign(agent_id, hello.boot_id, hello.counter):
            self.counts["stale hello"] += 1
            return
        self._fleet.set_heartbeat_interval(agent_id, hello.heartbeat_s)
        self._on_damage(agent_id, one_line(hello.damage, MAX_DAMAGE_CHARS))
        self._refresh_tools(agent_id)
        try:
            await self._send_welcome(agent_id, hello)
        except EvoClawError:
            self.counts["the store failed"] += 1  # no welcome, so the edge says hello again

    def _on_damage(self, agent_id: str, damage: str) -> None:
        member = self._fleet.member(agent_id)
        news, member.damage = damage and damage != member.damage, damage
        if news:
            logger.error("edge %s is damaged: %s", agent_id, damage)
            self.on_damage(agent_id, damage)

    async def _send_welcome(self, agent_id: str, hello: Hello) -> None:
        reported = {*hello.running, *hello.finished}
        states = await self._commands.known(sorted(reported))
        cancels = ("cancelling", *FINAL_STATES)
        welcome = Welcome(
            hello.boot_id,
            hello.counter,
            self._requests.clock(),
            hello.asked,
            acks=[id_ for id_ in hello.finished if states.get(id_) in FINAL_STATES],
            cancels=[id_ for id_ in hello.running if states.get(id_) in cancels],
        )
        await self._requests.send_signed(agent_id, Command("welcome", as_payload(welcome)))
        member = self._fleet.member(agent_id)
        if member.journal_id not in ("", hello.journal):
            await self._on_journal_lost(agent_id, reported)
        member.journal_id = hello.journal
        member.last_hello = (hello.boot_id, hello.counter)
        self._requests.edge_queues.on_hello(agent_id, reported, hello.room)
        for command in await self._commands.cancelling(agent_id):
            if command.request_id not in reported:
                self._requests.spawn(self._requests.cancel(agent_id, command.request_id))

    async def _on_journal_lost(self, agent_id: str, known_to_edge: Collection[str]) -> None:
        """An edge lost its journal: the outcome of the commands sent before is unknown."""
        self.counts["journals lost"] += 1
        for command in await self._commands.wanted(agent_id, self._requests.clock()):
            if command.state != "queued" and command.request_id not in known_to_edge:
                await self._requests.give_up(agent_id, command.request_id, "call")

    def _refresh_tools(self, agent_id: str) -> None:
        if self._fleet.is_online(agent_id) and self._fleet.outdated(agent_id):
            self._spawn(self._tool_discovery.refresh(agent_id))

    async def _check_silence(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_CHECK_INTERVAL_S)
            self._fleet.mark_silent_offline()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        if len(self._tasks) >= MAX_CONCURRENT_TASKS:
            self.counts["too much at once"] += 1
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
