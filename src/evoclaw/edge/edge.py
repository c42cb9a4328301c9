"""A device's process: connect, say hello, serve commands, give signs of life, leave cleanly."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.edge import commands
from evoclaw.edge.advert import advert
from evoclaw.edge.calls import Calls
from evoclaw.edge.parts import Parts
from evoclaw.edge.reports import Reports
from evoclaw.edge.status import MachineStatus
from evoclaw.transport.link import Incoming, LinkDown, TooLarge, Will
from evoclaw.transport.topics import BROADCAST, Kind, topic
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

GREETINGS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between two hellos while nobody answers."""
SHY = 1.0
"""Seconds at most before a hello that everybody was asked for: not all at the same moment."""
LAST_WORDS = 2.0
"""Seconds that answers under way are waited for when leaving."""
MOST_IDS = 500
"""Ids in one hello; the rest is repaired by resending."""


class Edge:
    """One device; a link's party."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.clock = parts.clock
        self.reports = Reports(parts.who, parts.link, parts.journal)
        self.calls = Calls(
            parts.planners,
            parts.journal,
            self.reports,
            self.clock,
            parts.limits,
            parts.who.boot_id,
            noted=self._note,
        )
        self.machine = MachineStatus()
        self.counts: Counter[str] = Counter()
        """What was dropped, by reason."""
        self._connection = 0
        self._greet = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until `stop`; then end what runs, tell it, and leave."""
        await self.calls.recover()
        async with asyncio.TaskGroup() as group:
            loops = (
                self.parts.link.run(self),
                self.reports.resend(),
                self.calls.beat(),
                self._heartbeats(),
                self._greetings(),
            )
            tasks = [group.create_task(loop) for loop in loops]
            await self._stop.wait()
            await self.calls.close()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=LAST_WORDS)
            await self._say_status("offline")
            self.reports.close()
            for task in (*self._tasks, *tasks):
                task.cancel()

    def stop(self) -> None:
        """Leave; `run` returns when everything has ended."""
        self._stop.set()

    async def abandon(self) -> None:
        """End every task without a word, as a crash would; for tests of what comes after."""
        await self.calls.abandon()
        for task in tuple(self._tasks):
            task.cancel()

    @property
    def client_id(self) -> str:
        """Its name at the broker."""
        return self.parts.who.client_id or self.parts.who.agent_id

    @property
    def subscriptions(self) -> Sequence[str]:
        """Its own commands, and those for everybody."""
        return topic(self.parts.who.agent_id, Kind.COMMANDS), BROADCAST

    def will(self) -> Will:
        """Offline, unless a newer connection says otherwise."""
        self._connection += 1
        return Will(topic(self.parts.who.agent_id, Kind.STATUS), encode(self._status("offline")))

    async def connected(self) -> None:
        """Say that it is here and what it can do, each time: an older will may come later."""
        await self._say_status("online")
        await self.advertise()
        self._greet.set()

    def disconnected(self, reason: str) -> None:
        """Count it; the link tries again."""
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Take a command; what is none is counted, and answered if it can be."""
        if message.retained:
            self.counts["retained"] += 1  # a command is for now: nobody means one that was kept
            return
        try:
            command = read_command(message.payload)
        except WireError as problem:
            self.counts[f"unreadable: {problem.kind}"] += 1
            if problem.request_id:
                self.spawn(commands.refuse(self, problem.request_id, problem))
            return
        commands.take(self, command, for_all=message.topic == BROADCAST)

    async def advertise(self) -> None:
        """Publish what this device says of itself."""
        await self._publish(Kind.CAPABILITIES, encode(self.advert), retain=True)

    @property
    def advert(self) -> Advert:
        """What this device says of itself now."""
        return advert(self.parts.who, self.parts.executor.tools(), has_model=self.parts.has_model)

    def greet(self) -> None:
        """Say hello soon: somebody new asked who is there."""
        delay = random.uniform(0, SHY)
        asyncio.get_running_loop().call_later(delay, self._greet.set)

    def welcomed(self, welcome: Welcome) -> None:
        """An orchestrator knows that we are here, and what it still has to say."""
        who = self.parts.who
        if (welcome.boot_id, welcome.counter) != (who.boot_id, self._connection):
            self.counts["stale welcome"] += 1
            return
        self.clock.set(welcome.now)
        self._welcomed.set()
        for request_id in welcome.cancels:
            self.calls.cancel(request_id)
        self.spawn(self._settle(welcome.acks))

    def heartbeat(self) -> Heartbeat:
        """How this device is."""
        machine = self.machine.read()
        return Heartbeat(
            self.parts.who.boot_id,
            self._connection,
            in_flight=self.calls.in_flight,
            queued=self.calls.queued,
            cpu_percent=machine.cpu_percent,
            memory_mb=machine.memory_mb,
            uptime_s=machine.uptime_s,
        )

    def spawn(self, work: commands.Work) -> None:
        """Do something beside the rest; ended with the device."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, acks: list[str]) -> None:
        await self.reports.acknowledged(acks)
        self.reports.send_again()

    async def _heartbeats(self) -> None:
        limits = self.parts.limits
        while True:
            await asyncio.sleep(limits.heartbeat)
            if self.parts.link.is_up:
                await self.reports.say(ReportType.HEARTBEAT, as_payload(self.heartbeat()))
            await self.parts.journal.prune(
                time.time(), window_seconds=limits.dedupe_seconds, most=limits.dedupe_most
            )

    async def _greetings(self) -> None:
        while True:
            await self._greet.wait()
            self._greet.clear()
            self._welcomed.clear()
            for delay in GREETINGS:
                if self._greet.is_set() or not self.parts.link.is_up:
                    break  # there is a newer reason to greet, or will be
                await self.reports.say(ReportType.HELLO, as_payload(await self._hello()))
                try:
                    async with asyncio.timeout(delay):
                        await self._welcomed.wait()
                    break
                except TimeoutError:
                    self.counts["hello unanswered"] += 1

    async def _hello(self) -> Hello:
        waiting = await self.parts.journal.unacknowledged(MOST_IDS)
        return Hello(
            self.parts.who.boot_id,
            self._connection,
            running=self.calls.open_ids[:MOST_IDS],
            finished=[row.request_id for row in waiting],
        )

    def _note(self, result: ToolResult, elapsed: float | None) -> None:
        if result.name == "prompt":
            return  # its model's doing is counted where its run ends
        self.parts.outcomes.record_call(
            result.name, error=result.error, message=result.text, elapsed_ms=elapsed
        )

    def _status(self, status: str) -> Status:
        return Status(self.parts.who.agent_id, status, self.parts.who.boot_id, self._connection)

    async def _say_status(self, status: str) -> None:
        await self._publish(Kind.STATUS, encode(self._status(status)), retain=True)

    async def _publish(self, kind: Kind, payload: bytes, *, retain: bool) -> None:
        try:
            await self.parts.link.publish(
                topic(self.parts.who.agent_id, kind), payload, retain=retain
            )
        except (LinkDown, TooLarge) as problem:
            self.counts[f"unsaid {kind}: {type(problem).__name__}"] += 1

    def figures(self) -> dict[str, JSON]:
        """What `get_metrics` answers."""
        return {
            "heartbeat": as_payload(self.heartbeat()),
            "tools": self.parts.outcomes.metrics(),
            "fitness": self.parts.outcomes.fitness(),
            "dropped": dict(self.counts),
            "unsent": self.reports.dropped,
            "clock_skew_s": round(self.clock.skew, 3),
        }
