"""Commands under way to edges: stored, published until somebody has them, awaited, cleaned up.

The waiter is there before the command is published and gone when its answer is in. A reply counts
only from the agent that was asked; late, foreign and second replies are counted and harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Progress
from evoclaw.core.wording import outcome_unknown
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.topics import Kind, topic
from evoclaw.transport.wire import (
    Chunk,
    Command,
    Outcome,
    Report,
    ReportType,
    WireError,
    convert,
    encode,
)

GRACE = 10.0
"""Seconds on top of everything before a call is given up as unknown."""
AGAIN = (2.0, 4.0, 8.0, 15.0)
"""Seconds until a command that nobody has accepted is published again; the last one repeats."""
ACK_AFTER = 0.02
"""Seconds that acknowledgements are gathered."""


class Kept(Protocol):
    """A command as the outbox has it."""

    @property
    def outcome(self) -> bytes | None:
        """How it ended, if it has."""
        ...


class Stored(Protocol):
    """What became of a command that was put into the outbox."""

    @property
    def row(self) -> Kept | None:
        """What was there already."""
        ...


class Outbox(Protocol):
    """Where commands are kept until their outcome is known; it outlives this process."""

    async def put(
        self,
        request_id: str,
        agent_id: str,
        run_id: str,
        payload: bytes,
        expires_at: float,
        *,
        sent: bool = False,
    ) -> Stored:
        """Keep a command; raise when the agent has too many already."""
        ...

    async def mark(self, request_id: str, state: str) -> object:
        """Note how far a command has come: `sent`, `accepted` or `cancelling`."""
        ...

    async def expire(self, now: float) -> list[str]:
        """Close the commands whose time is over and that were never sent."""
        ...

    async def settle(self, request_id: str, agent_id: str, outcome: bytes) -> str:
        """Keep how a command ended; `foreign` when it is no command of ours to that agent."""
        ...


class _Waiter:
    """Somebody who waits for a command's outcome."""

    __slots__ = ("accepted", "agent_id", "future", "payload", "progress", "sent", "seq")

    def __init__(self, agent_id: str, payload: bytes, progress: Progress | None) -> None:
        self.agent_id, self.payload, self.progress = agent_id, payload, progress
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.sent = self.accepted = False
        self.seq = 0


class Patience(Struct, frozen=True):
    """How long a command may take."""

    work: float
    """Seconds, once it has begun."""
    queue: float = 60.0
    """Seconds until it must have begun."""

    @property
    def total(self) -> float:
        """Seconds after which the outcome is unknown."""
        return self.queue + self.work + GRACE


class Requests:
    """Commands under way to edges, and who waits for them."""

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        *,
        reachable: Callable[[str], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._link, self._outbox, self._clock = link, outbox, clock
        self._reachable = reachable
        self._waiters: dict[str, _Waiter] = {}
        self._acks: dict[str, list[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """Reports that were late, foreign or unreadable."""

    async def ask(
        self,
        agent_id: str,
        command: Command,
        patience: Patience,
        progress: Progress | None = None,
    ) -> Outcome:
        """Have a command done once and await how it ended; `ToolFailure` if that stays unknown."""
        expires_at = self._clock() + patience.queue
        command = replace(
            command, expires_at=round(expires_at, 3), queue_ttl_ms=round(patience.queue * 1000)
        )
        payload = encode(command)
        request_id = command.request_id
        waiter = self._waiters[request_id] = _Waiter(agent_id, payload, progress)
        try:
            waiter.sent = self._reachable(agent_id)
            stored = await self._keep(waiter, command, expires_at)
            if stored.row is not None and stored.row.outcome is not None:
                return msgspec.json.decode(stored.row.outcome, type=Outcome)
            async with asyncio.timeout(patience.total):
                return await self._until_answered(request_id, waiter)
        except TimeoutError:
            raise await self._given_up(request_id, waiter, command) from None
        except asyncio.CancelledError:
            self._spawn(self._cancel(agent_id, request_id))
            raise
        finally:
            if self._waiters.get(request_id) is waiter:
                del self._waiters[request_id]

    async def talk(self, agent_id: str, command: Command, seconds: float = 10.0) -> Outcome:
        """Ask something that may be asked again: not stored, given up soon."""
        waiter = _Waiter(agent_id, encode(command), None)
        waiter.sent = True
        self._waiters[command.request_id] = waiter
        try:
            async with asyncio.timeout(seconds):
                return await self._until_answered(command.request_id, waiter)
        except TimeoutError:
            text = f"Agent {agent_id!r} did not answer within {seconds:g}s."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text) from None
        finally:
            del self._waiters[command.request_id]

    def deliver(self, report: Report) -> None:
        """Take a report that came from its agent."""
        waiter = self._waiters.get(report.request_id)
        if waiter is not None and waiter.agent_id != report.agent_id:
            self.counts["from the wrong agent"] += 1
            return
        match report.report_type:
            case ReportType.RESULT | ReportType.ERROR:
                self._spawn(self._settle(report))
            case ReportType.CHUNK if waiter is not None:
                self._output(waiter, report)
            case ReportType.PROGRESS if waiter is not None:
                if not waiter.accepted:
                    waiter.accepted = True
                    self._spawn(self._accepted(report.request_id))
            case _:
                self.counts["unexpected"] += 1

    async def send(self, agent_id: str, command: Command | bytes) -> bool:
        """Publish to an agent; False when the link would not take it."""
        payload = command if isinstance(command, bytes) else encode(command)
        try:
            await self._link.publish(topic(agent_id, Kind.COMMANDS), payload)
        except LinkDown:
            return False
        return True

    async def close(self) -> None:
        """Wait for what is being written or said."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep(self, waiter: _Waiter, command: Command, expires_at: float) -> Stored:
        size, most = len(waiter.payload), self._link.max_payload
        if size > most:
            problem = TooLarge(size, most)
            text = f"The call was not sent: {problem}. Pass less, or a path instead of contents."
            raise ToolFailure(ErrorKind.TOO_LARGE, text)
        try:
            return await self._outbox.put(
                command.request_id,
                waiter.agent_id,
                command.run_id,
                waiter.payload,
                expires_at,
                sent=waiter.sent,
            )
        except EvoClawError as problem:
            text = f"The call was not sent: {problem}. Explain to the user."
            raise ToolFailure(ErrorKind.QUEUE_FULL, text) from None

    async def _until_answered(self, request_id: str, waiter: _Waiter) -> Outcome:
        """Publish until somebody has it: the broker's word for it is worth nothing."""
        tries = 0
        while True:
            if not waiter.accepted and self._reachable(waiter.agent_id):
                if not waiter.sent:
                    waiter.sent = True
                    await self._outbox.mark(request_id, "sent")
                await self.send(waiter.agent_id, waiter.payload)
            delay = AGAIN[min(tries, len(AGAIN) - 1)]
            tries += 1
            done, _ = await asyncio.wait([waiter.future], timeout=delay)
            if done:
                return waiter.future.result()

    async def _given_up(self, request_id: str, waiter: _Waiter, command: Command) -> ToolFailure:
        """Say that nobody knows; or, of what never left here, that it was not run."""
        name = command.payload.get("tool", command.command)
        kind, text = ErrorKind.UNKNOWN, outcome_unknown(name)
        if not waiter.sent and request_id in await self._outbox.expire(self._clock()):
            kind = ErrorKind.EXPIRED
            text = f"Agent {waiter.agent_id!r} was not there in time; {name!r} was not run."
        outcome = Outcome(request_id, "error", name, error=text, error_type=str(kind))
        await self._outbox.settle(request_id, waiter.agent_id, msgspec.json.encode(outcome))
        return ToolFailure(kind, text, agent=waiter.agent_id)

    async def _cancel(self, agent_id: str, request_id: str) -> None:
        await self._outbox.mark(request_id, "cancelling")
        payload: dict[str, JSON] = {"request_id": request_id}
        await self.send(agent_id, Command("cancel", payload, f"{request_id}.cancel"))

    async def _accepted(self, request_id: str) -> None:
        await self._outbox.mark(request_id, "accepted")

    async def _settle(self, report: Report) -> None:
        """Store, then acknowledge, then tell who waits: what is acknowledged is never lost."""
        try:
            outcome = convert(report.payload, Outcome, report.request_id)
        except WireError:
            self.counts["unreadable outcome"] += 1
            return
        request_id, agent_id = report.request_id, report.agent_id
        kept = await self._outbox.settle(request_id, agent_id, msgspec.json.encode(outcome))
        if kept != "foreign":
            self._acknowledge(agent_id, request_id)
        waiter = self._waiters.get(request_id)
        if waiter is None:
            self.counts["late or foreign"] += 1
        elif not waiter.future.done():
            waiter.future.set_result(outcome)

    def _acknowledge(self, agent_id: str, request_id: str) -> None:
        waiting = self._acks.setdefault(agent_id, [])
        waiting.append(request_id)
        if len(waiting) == 1:
            loop = asyncio.get_running_loop()
            loop.call_later(ACK_AFTER, lambda: self._spawn(self._send_acks(agent_id)))

    async def _send_acks(self, agent_id: str) -> None:
        ids: JSON = self._acks.pop(agent_id, [])
        await self.send(agent_id, Command("result_ack", {"request_ids": ids}))

    def _output(self, waiter: _Waiter, report: Report) -> None:
        try:
            chunk = convert(report.payload, Chunk)
        except WireError:
            self.counts["unreadable chunk"] += 1
            return
        if chunk.seq > waiter.seq and waiter.progress is not None:
            waiter.seq = chunk.seq
            waiter.progress(chunk.text)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
