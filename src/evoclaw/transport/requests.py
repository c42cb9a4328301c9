"""Commands under way to edges: stored, published until somebody has them, awaited, cleaned up.

The waiter is there before the command is published and gone when its answer is in. A reply counts
only from the agent that was asked; late, foreign and second replies are counted and harmless.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.eager import begin
from evoclaw.core.errors import EvoClawError, Standstill, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Progress
from evoclaw.transport.clocks import steady_wall
from evoclaw.transport.completions import LOOK, Acks, Closings, Endings, known, too_large
from evoclaw.transport.edge_queues import AGAIN, SILENCE, Lanes
from evoclaw.transport.link import Link, TooLarge
from evoclaw.transport.outbox import CLOSED, Kept, Outbox
from evoclaw.transport.outcomes import failed, read_outcome
from evoclaw.transport.pending_requests import Waiter
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
BRINK = 0.05
"""Seconds after a command had to have begun when that is looked at."""
LAST_WORDS = 2.0
"""Seconds that cancellations and acknowledgements are waited for when leaving."""
AT_ONCE = 5_000
"""Reports being stored; what comes beyond is not acknowledged, so it is sent again."""


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


class NeverFull(EvoClawError):
    """What an outbox without a limit never raises."""


def unsigned(agent_id: str, command: Command) -> Command:
    """Where edges ask for no signatures."""
    return command


class Requests:
    """Commands under way to edges, and who waits for them."""

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        *,
        reachable: Callable[[str], bool],
        clock: Callable[[], float] | None = None,
        full: type[EvoClawError] = NeverFull,
        sign: Callable[[str, Command], Command] = unsigned,
        again: Sequence[float] = AGAIN,
        silence: float = SILENCE,
    ) -> None:
        """Choose the parts.

        Args:
            link: The way to the broker.
            outbox: Where commands are kept.
            reachable: Whether an agent is there.
            clock: The time of day; deadlines are told by it.
            full: What the outbox raises when an agent has too many commands waiting.
            sign: Gives its grant to a command that is sent on our own account.
            again: As in `Lanes`.
            silence: As in `Lanes`.
        """
        self._link, self._outbox, self._reachable = link, outbox, reachable
        self.clock = clock or steady_wall()
        self._full, self._sign, self._again = full, sign, tuple(again)
        self._waiters: dict[str, Waiter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.closings = Closings()
        self.counts: Counter[str] = Counter()
        """Reports that were late, foreign or unreadable."""
        self._acks = Acks(self.send, self.spawn)
        self._endings = Endings(
            outbox, self._waiters, self.counts, landed=self._landed, acknowledge=self._acks.add
        )
        self.give_up = self._endings.give_up
        """Close a command whose time is over without a word on it."""
        self.lanes = Lanes(
            link,
            outbox,
            reachable=reachable,
            clock=self.clock,
            spawn=self.spawn,
            unsendable=self._endings.unsendable,
            again=again,
            silence=silence,
        )

    async def ask(
        self,
        agent_id: str,
        command: Command,
        patience: Patience,
        progress: Progress | None = None,
    ) -> Outcome:
        """Have a command done once and await how it ended; `ToolFailure` if it was never kept.

        Who asks for the same command while it is under way waits with the first. A job is answered
        when it has begun.
        """
        waiter = self._waiters.get(command.request_id)
        first = waiter is None
        if waiter is None:
            waiter = self._waiters[command.request_id] = Waiter(agent_id, command)
        elif not waiter.is_for(agent_id, command):
            text = "Another command with the same id is under way; this one was not sent."
            raise ToolFailure(ErrorKind.CONFLICT, text)
        try:
            with waiter.joined(progress) as answer:
                if first:
                    await self._begin(waiter, patience)
                return await answer
        except asyncio.CancelledError:
            self._left(waiter, patience)
            raise
        finally:
            if not waiter.wanted:
                self._forget(waiter)

    async def talk(self, agent_id: str, command: Command, seconds: float = 10.0) -> Outcome:
        """Ask something that may be asked again: not stored, given up soon."""
        command = self._sign(agent_id, replace(command, queue_ttl_ms=round(seconds * 1000)))
        payload = encode(command)
        self._check_size(payload)
        waiter = self._waiters[command.request_id] = Waiter(agent_id, command, talk=True)
        try:
            async with asyncio.timeout(seconds):
                with waiter.joined(None) as answer:
                    for tries in count():
                        await self.send(agent_id, payload)
                        delay = self._again[min(tries, len(self._again) - 1)]
                        if (await asyncio.wait([answer], timeout=delay))[0]:
                            break
                    return answer.result()
        except TimeoutError:
            text = f"Agent {agent_id!r} did not answer within {seconds:g}s."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text) from None
        finally:
            self._forget(waiter)

    async def cancel(self, agent_id: str, request_id: str) -> None:
        """Have a command ended, or never begun; that it has is told as its outcome."""
        try:
            row = await self._outbox.get(request_id)
            self.lanes.landed(agent_id, request_id)
            if row is None or row.state in CLOSED:
                return
            await self._outbox.mark(request_id, "cancelling")
            if row.state == "queued":
                text = "The call was cancelled before it was sent."
                unsent = failed(request_id, "", ErrorKind.CANCELLED, text)
                await self._endings.close(agent_id, unsent)
            elif self._reachable(agent_id):  # otherwise it is told when it says hello
                asked: dict[str, JSON] = {"request_id": request_id}
                await self.talk(agent_id, Command("cancel", asked, f"cancel-{token_hex(8)}"))
        except ToolFailure:
            self.counts["cancel unanswered"] += 1
        except EvoClawError:
            self.counts["the store failed"] += 1

    @property
    def room(self) -> int:
        """The most bytes that one message has now."""
        return self._link.max_payload

    async def asked_of(self, request_id: str) -> str | None:
        """Which agent a command was for, if it was ever asked."""
        row = await self._outbox.get(request_id)
        return None if row is None else row.agent_id

    def deliver(self, report: Report) -> None:
        """Take a report that came from its agent."""
        waiter = self._waiters.get(report.request_id)
        if waiter is not None and waiter.agent_id != report.agent_id:
            self.counts["from the wrong agent"] += 1
            return
        match report.report_type:
            case ReportType.RESULT | ReportType.ERROR:
                self._take_end(report, waiter)
            case ReportType.PROGRESS:
                self._take_progress(report, waiter)
            case ReportType.CHUNK if waiter is not None:
                self._take_chunk(report, waiter)
            case _:
                self.counts["unexpected"] += 1

    async def send(self, agent_id: str, command: Command | bytes) -> bool:
        """Publish to an agent; False when the link would not take it."""
        payload = command if isinstance(command, bytes) else encode(command)
        try:
            return await self.lanes.publish(agent_id, payload)
        except TooLarge:
            self.counts["too large"] += 1
            return False

    async def close(self, seconds: float = LAST_WORDS) -> None:
        """Say what is left to say, as long as that takes no longer; then nothing more."""
        self._closed = not seconds
        self._acks.flush()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._tasks and (left := end - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        self._closed = True
        self.lanes.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Do something beside the rest, until we are closed."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, waiter: Waiter, patience: Patience) -> None:
        """Store a command and publish it, or leave that to its lane."""
        agent_id, request_id = waiter.agent_id, waiter.command.request_id
        self._watch(waiter, patience)
        waiter.expires_at = round(self.clock() + patience.queue, 3)
        ttl = round(patience.queue * 1000)
        command = replace(waiter.command, expires_at=waiter.expires_at, queue_ttl_ms=ttl)
        payload = encode(command)
        direct = kept = False
        try:
            self._check_size(payload)
            direct = self.lanes.reserve(agent_id, request_id, payload)
            row = await self._put(waiter, payload, sent=direct)
            kept = True
        except ToolFailure as problem:
            waiter.fail(problem)
            raise
        finally:
            if direct and not kept:
                self.lanes.landed(agent_id, request_id)
        waiter.payload = payload
        if row is not None and row.state in CLOSED:
            self.lanes.landed(agent_id, request_id)
            waiter.settle(known(row, waiter))
        elif direct:
            await self.lanes.launch(agent_id, request_id)
        else:
            self.lanes.wake(agent_id)

    def _check_size(self, payload: bytes) -> None:
        size, most = len(payload), self._link.max_payload
        if size > most:
            raise ToolFailure(ErrorKind.TOO_LARGE, too_large(TooLarge(size, most)))

    async def _put(self, waiter: Waiter, payload: bytes, *, sent: bool) -> Kept | None:
        command = waiter.command
        try:
            stored = await self._outbox.put(
                command.request_id,
                waiter.agent_id,
                command.run_id,
                payload,
                waiter.expires_at,
                sent=sent,
                tenant=command.tenant,
            )
        except Standstill:
            raise  # whoever asks does so again
        except EvoClawError as problem:
            kind = ErrorKind.QUEUE_FULL if isinstance(problem, self._full) else ErrorKind.INTERNAL
            text = f"The call was not sent: {problem}. Explain to the user."
            raise ToolFailure(kind, text) from None
        return stored.row

    def _left(self, waiter: Waiter, patience: Patience) -> None:
        """One who waited is gone; if it was the last, the command is not wanted any more."""
        if not waiter.wanted:
            self.spawn(self.cancel(waiter.agent_id, waiter.command.request_id))
        elif not waiter.payload:
            self.spawn(self._begin_again(waiter, patience))

    async def _begin_again(self, waiter: Waiter, patience: Patience) -> None:
        with suppress(ToolFailure):  # those who wait are told
            await self._begin(waiter, patience)

    def _landed(self, agent_id: str, request_id: str) -> None:
        self.lanes.landed(agent_id, request_id)
        self.closings.note(request_id)

    def _forget(self, waiter: Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        if self._waiters.get(waiter.command.request_id) is waiter:
            del self._waiters[waiter.command.request_id]

    def _watch(self, waiter: Waiter, patience: Patience) -> None:
        """See to it that somebody who waits does so in time, and not in vain."""
        now = asyncio.get_running_loop().time()
        waiter.must_begin = now + patience.queue + BRINK
        waiter.must_end = now + patience.total
        self._look_later(waiter, now)

    def _look_later(self, waiter: Waiter, now: float) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        ahead = waiter.must_begin if now < waiter.must_begin else waiter.must_end
        loop = asyncio.get_running_loop()
        waiter.timer = loop.call_at(min(now + LOOK, ahead), lambda: self.spawn(self._look(waiter)))

    async def _look(self, waiter: Waiter) -> None:
        now = asyncio.get_running_loop().time()
        if now >= waiter.must_end:
            request_id = waiter.command.request_id
            return waiter.settle(await self.give_up(waiter.agent_id, request_id, waiter.name))
        await self._endings.look(waiter, self.clock())
        if waiter.answer is None and waiter.wanted:
            self._look_later(waiter, now)
        return None

    def _take_end(self, report: Report, waiter: Waiter | None) -> None:
        if waiter is not None and waiter.talk:
            waiter.settle(read_outcome(report))
        elif len(self._tasks) >= AT_ONCE:
            self.counts["too many at once"] += 1
        else:
            left = begin(self._endings.take(report.agent_id, read_outcome(report)))
            if left is not None:
                self.spawn(left)

    def _take_progress(self, report: Report, waiter: Waiter | None) -> None:
        agent_id, request_id = report.agent_id, report.request_id
        if self.lanes.heard(agent_id, request_id):
            self.spawn(self._accepted(request_id))
        if waiter is not None and waiter.is_job:
            self.lanes.parked(agent_id, request_id)
            waiter.settle(job_begun(request_id, waiter.name))

    def _take_chunk(self, report: Report, waiter: Waiter) -> None:
        try:
            waiter.output(convert(report.payload, Chunk))
        except WireError:
            self.counts["unreadable chunk"] += 1

    async def _accepted(self, request_id: str) -> None:
        try:
            await self._outbox.mark(request_id, "accepted")
        except EvoClawError:
            self.counts["the store failed"] += 1


def job_begun(request_id: str, name: str) -> Outcome:
    """The answer to a call that goes on by itself."""
    text = f"Job {request_id} has begun and goes on by itself. Ask for it later by that id."
    details: dict[str, JSON] = {"job_id": request_id, "state": "running"}
    return Outcome(request_id, "success", name, text, details=details)
