"""`Edge`: a device's process: connects, sends hello, serves commands, sends heartbeats, leaves."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Sequence

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.edge import commands
from evoclaw.edge.calls import EdgeCalls
from evoclaw.edge.device import EdgeParts, advert
from evoclaw.edge.plans import no_grants
from evoclaw.edge.reports import EdgeReports
from evoclaw.edge.retention import EdgeRetention
from evoclaw.edge.status import MachineStatus
from evoclaw.transport.clocks import monotonic_clock
from evoclaw.transport.link import Incoming, LinkDown, TooLarge, Will
from evoclaw.transport.topics import BROADCAST, TopicKind, topic
from evoclaw.transport.wire import (
    Advert,
    Heartbeat,
    Hello,
    ReportType,
    Status,
    Welcome,
    WireError,
    as_payload,
    encode,
    read_command,
)

HELLO_RETRY_FACTORS = (1, 2, 4, 8, 15, 30)
"""How long a hello waits for an answer, as multiples of the first wait; then no more retries."""
OWN_CLOCK_AFTER_HELLOS = 3
"""Unanswered hellos after which the device uses its own clock."""
MAX_CLOCK_ROUND_TRIP_S = 1.0
"""The longest round trip of an accepted time; after a longer one the device asks again, once."""
LEAVE_TIMEOUT_S = 2.0
"""How long pending answers are waited for when leaving."""
MAX_HELLO_IDS = 500
"""Ids of each kind in one hello; the rest is recovered by resending."""
MAX_HELLO_ID_BYTES = 100_000
"""Size of the ids of one kind in a hello."""
MAX_REMEMBERED_HELLOS = 64
"""Hellos of a connection that a welcome may answer."""
TASK_CONCURRENCY = 1_000
"""Background tasks; further commands are dropped, and the orchestrator sends them again."""


class Edge:
    """One device; a link's party."""

    def __init__(self, parts: EdgeParts) -> None:
        self.parts = parts
        self.clock = parts.clock
        self.reports = EdgeReports(parts.identity, parts.link, parts.journal, parts.limits)
        self.calls = EdgeCalls(
            parts.planners,
            parts.journal,
            self.reports,
            self.clock,
            parts.limits,
            parts.identity.boot_id,
            concurrency=self._concurrency,
            noted=self._note,
        )
        self.machine = MachineStatus()
        self.memory = EdgeRetention(
            parts.journal, parts.outcomes, parts.limits, parts.artifacts, parts.images
        )
        self.counts: Counter[str] = Counter()
        """What was dropped, by reason."""
        self.connection = 0
        """Counts the connections of this boot."""
        self._greet = asyncio.Event()
        self._asked = 0.0
        """When the last hello was sent, by the monotonic clock."""
        self._asked_at: deque[float] = deque(maxlen=MAX_REMEMBERED_HELLOS)
        """When the hellos of this connection were sent, as they said."""
        self._doubted = 0
        """The connection on which the time was requested again."""
        self._welcomed = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until `stop`; then end and report what runs, and leave nothing running."""
        try:
            await self.memory.load()
            await self.reports.load()
            await self.calls.recover()
            async with asyncio.TaskGroup() as connection:
                link = connection.create_task(self.parts.link.run(self))
                try:
                    await self._serve()
                finally:
                    await self._send_status("offline")
                    link.cancel()
        finally:
            await self.calls.abandon()
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = (
                self.reports.resend(),
                self.calls.report_progress(),
                self._heartbeats(),
                self._hellos(),
            )
            tasks = [group.create_task(loop) for loop in loops]
            await self._stop.wait()
            await self.calls.close()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=LEAVE_TIMEOUT_S)
            await self.memory.save()
            for task in tasks:
                task.cancel()

    def stop(self) -> None:
        """Leave; `run` returns when everything has ended."""
        self._stop.set()

    @property
    def is_welcomed(self) -> bool:
        """Whether an orchestrator has answered the last hello."""
        return self._welcomed.is_set()

    @property
    def client_id(self) -> str:
        """Its MQTT client id."""
        return self.parts.identity.client_id or self.parts.identity.agent_id

    @property
    def subscriptions(self) -> Sequence[str]:
        """Its own commands, and broadcasts."""
        return topic(self.parts.identity.agent_id, TopicKind.COMMANDS), BROADCAST

    def will(self) -> Will:
        """The status offline, unless a newer connection overrides it."""
        self.connection += 1
        self._asked_at.clear()
        return Will(
            topic(self.parts.identity.agent_id, TopicKind.STATUS), encode(self._status("offline"))
        )

    async def connected(self) -> None:
        """Publish status and advert on each connection: an older will may arrive later."""
        await self._send_status("online")
        await self.advertise()
        self._greet.set()
        self.reports.link_is_up()

    def disconnected(self, reason: str) -> None:
        """Count the lost connection; the link reconnects."""
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Handle a command; an invalid one is counted, and answered if possible."""
        if message.retained:
            self.counts["retained"] += 1  # a retained command is stale
            return
        try:
            command = read_command(message.payload)
        except WireError as problem:
            self.counts[f"unreadable: {problem.kind}"] += 1
            if message.topic != BROADCAST:
                self.spawn(commands.refuse(self, problem.request_id, problem, message.payload))
            return
        commands.take(self, command, message.payload, for_all=message.topic == BROADCAST)

    async def advertise(self) -> None:
        """Publish the advert."""
        await self._publish(TopicKind.CAPABILITIES, encode(self.advert), retain=True)

    @property
    def advert(self) -> Advert:
        """The current advert."""
        return advert(
            self.parts.identity,
            self.parts.executor.tools(),
            has_model=self.parts.has_model,
            genome=self.parts.genomes.current().digest,
        )

    def send_hello(self) -> None:
        """Send a hello soon: an orchestrator asked for it."""
        delay = random.uniform(0, self.parts.limits.max_hello_delay_s)
        asyncio.get_running_loop().call_later(delay, self._greet.set)

    def on_welcome(self, welcome: Welcome) -> None:
        """Handle an orchestrator's welcome."""
        if not self._is_fresh(welcome):
            self.counts["stale welcome"] += 1
            return
        asked = self._asked if welcome.asked is None else welcome.asked
        self.clock.set(welcome.now, max(monotonic_clock() - asked, 0.0))
        self._welcomed.set()
        if self.clock.loose > MAX_CLOCK_ROUND_TRIP_S and self._doubted != self.connection:
            self._doubted = self.connection
            self.send_hello()
        for request_id in welcome.cancels:
            self.calls.cancel(request_id)
        self.spawn(self._settle(welcome.acks))

    def _is_fresh(self, welcome: Welcome) -> bool:
        """Whether a welcome answers a hello of this connection, sent when the welcome says so.

        A hello is not signed: with another time in it, a welcome that was held back for a day
        would set the clock back by a day, and expired grants would be valid again.
        """
        who = self.parts.identity
        if (welcome.boot_id, welcome.counter) != (who.boot_id, self.connection):
            return False
        return self.parts.check is no_grants or welcome.asked in self._asked_at

    def heartbeat(self) -> Heartbeat:
        """The payload of a heartbeat."""
        machine = self.machine.read(sensors=False)
        return Heartbeat(
            self.parts.identity.boot_id,
            self.connection,
            in_flight=self.calls.in_flight,
            queued=self.calls.queued,
            room=max(self.calls.room, 0),
            cpu_percent=machine.cpu_percent,
            memory_mb=machine.memory_mb,
            uptime_s=machine.uptime_s,
        )

    def spawn(self, work: commands.Work) -> None:
        """Start a background task; it is ended with the device."""
        if len(self._tasks) >= TASK_CONCURRENCY:
            self.counts["too much at once"] += 1
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def metrics(self) -> dict[str, JSON]:
        """The answer to `get_metrics`."""
        genome = self.parts.genomes.current()
        return {
            "heartbeat": as_payload(self.heartbeat()),
            "machine": as_payload(self.machine.read()),
            "tools": self.parts.outcomes.metrics(),
            "fitness": self.parts.outcomes.fitness(),
            "genome": {"version": genome.version, "digest": genome.digest},
            "dropped": dict(self.counts) | dict(self.memory.counts),
            "unsent": self.reports.dropped,
            "given_up": self.reports.given_up,
            "clock_skew_s": round(self.clock.skew, 3),
        }

    def hello(self) -> Hello:
        """The hello message. Built without awaiting, so that it is consistent."""
        asked = round(monotonic_clock(), 3)
        self._asked_at.append(asked)
        return Hello(
            self.parts.identity.boot_id,
            self.connection,
            running=_some([live.request_id for live in self.calls.live]),
            finished=_some(self.reports.unacknowledged),
            room=max(self.calls.room, 0),
            journal=self.memory.journal_id,
            heartbeat_s=self.parts.limits.heartbeat_s,
            asked=asked,
            damage=self.parts.damage,
        )

    def _concurrency(self) -> int:
        limit, requested = self.parts.limits.concurrency, self.parts.genomes.current().concurrency
        return limit if requested is None else min(limit, requested)

    async def _settle(self, acks: list[str]) -> None:
        await self.reports.acknowledged(acks)
        self.reports.send_again()

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.parts.limits.heartbeat_s)
            if self.parts.link.is_up:
                await self.reports.send(ReportType.HEARTBEAT, as_payload(self.heartbeat()))
            await self.memory.save()
            await self.memory.forget(time.time())

    async def _hellos(self) -> None:
        while True:
            await self._greet.wait()
            self._greet.clear()
            self._welcomed.clear()
            self._asked = monotonic_clock()
            for tries, factor in enumerate(HELLO_RETRY_FACTORS):
                if self._greet.is_set() or not self.parts.link.is_up:
                    break  # a newer hello is due
                if tries == OWN_CLOCK_AFTER_HELLOS:
                    self.clock.give_up()
                await self.reports.send(ReportType.HELLO, as_payload(self.hello()))
                try:
                    async with asyncio.timeout(factor * self.parts.limits.hello_retry_delay_s):
                        await self._welcomed.wait()
                    break
                except TimeoutError:
                    self.counts["hello unanswered"] += 1

    def _note(self, result: ToolResult, elapsed: float | None) -> None:
        if result.name == "prompt":
            return  # counted when its run ends
        self.parts.outcomes.record_call(
            result.name, error=result.error, message=result.text, elapsed_ms=elapsed
        )

    def _status(self, status: str) -> Status:
        return Status(
            self.parts.identity.agent_id, status, self.parts.identity.boot_id, self.connection
        )

    async def _send_status(self, status: str) -> None:
        await self._publish(TopicKind.STATUS, encode(self._status(status)), retain=True)

    async def _publish(self, kind: TopicKind, payload: bytes, *, retain: bool) -> None:
        try:
            await self.parts.link.publish(
                topic(self.parts.identity.agent_id, kind), payload, retain=retain
            )
        except (LinkDown, TooLarge) as problem:
            self.counts[f"unsaid {kind}: {type(problem).__name__}"] += 1


def _some(ids: list[str]) -> list[str]:
    """As many of the ids as fit: ids of other orchestrators may be long."""
    fitting: list[str] = []
    remaining_bytes = MAX_HELLO_ID_BYTES
    for request_id in ids[:MAX_HELLO_IDS]:
        remaining_bytes -= 6 * len(request_id) + 3
        if remaining_bytes < 0:
            break
        fitting.append(request_id)
    return fitting
