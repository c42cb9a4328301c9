"""Commands to edges: stored, published until they are accepted, awaited, cleaned up.

A pending request exists before its command is published, until its outcome is in. A reply counts
only from the agent that was asked; late, foreign and duplicate replies are counted and ignored.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.commands import FINAL_STATES, CommandRow
from evoclaw.core.eager import start_eagerly
from evoclaw.core.errors import EvoClawError, RunSuspended, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Progress
from evoclaw.transport.clocks import monotonic_wall_clock
from evoclaw.transport.completions import (
    STORE_POLL_INTERVAL_S,
    Acknowledgements,
    ClosedWaits,
    Completions,
    PendingRequest,
    stored_outcome,
    too_large_message,
)
from evoclaw.transport.edge_queues import PROGRESS_TIMEOUT_S, PUBLISH_RETRY_DELAYS_S, EdgeQueues
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.outcomes import failed, job_started, read_outcome
from evoclaw.transport.timer_queue import TimerQueue
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import (
    Command,
    Outcome,
    OutputChunk,
    Report,
    ReportType,
    WireError,
    convert,
    encode,
)

OUTCOME_GRACE_S = 10.0
"""Added to all timeouts before the outcome of a call counts as unknown."""
START_CHECK_DELAY_S = 0.05
"""How long after the deadline for its start a command is checked."""
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for cancellations and acknowledgements."""
MAX_REMEMBERED_REQUESTS = 20_000
"""Commands that this process knows to have sent after it stopped waiting for them."""
REPORT_CONCURRENCY = 5_000
"""Reports stored at once; further ones are not acknowledged, so the edge sends them again."""


class CommandTimeouts(Struct, frozen=True):
    """How long a command may take."""

    work: float
    """Seconds, once it has started."""
    queue: float = 60.0
    """Seconds until it must have started."""

    @property
    def total(self) -> float:
        """Seconds after which the outcome is unknown."""
        return self.queue + self.work + OUTCOME_GRACE_S


class OutboxNeverFull(EvoClawError):
    """The error that an outbox without a limit never raises."""


def unsigned(agent_id: str, command: Command) -> Command:
    """The command unchanged, where edges require no grants."""
    return command


class Requests:
    """Commands in flight to edges, and the callers that wait for them."""

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        *,
        reachable: Callable[[str], bool],
        clock: Callable[[], float] | None = None,
        full: type[EvoClawError] = OutboxNeverFull,
        sign: Callable[[str, Command], Command] = unsigned,
        refusal: Callable[[str], str] = lambda _: "",
        recognizes_repeats: Callable[[str], bool] = lambda _: True,
        retry_delays: Sequence[float] = PUBLISH_RETRY_DELAYS_S,
        progress_timeout: float = PROGRESS_TIMEOUT_S,
    ) -> None:
        """Set the dependencies.

        Args:
            link: The link to the broker.
            outbox: The store of commands.
            reachable: Whether an agent is online.
            clock: The time of day, for deadlines.
            full: The error of the outbox when an agent has too many commands waiting.
            sign: Adds the grant to a command that the orchestrator sends itself.
            refusal: Why nothing may be sent to an agent; empty if it may.
            recognizes_repeats: Whether an agent does not start a command twice that it gets twice.
                One that does speaks only the basic messages: no acknowledgements, no cancel.
            retry_delays: As in `EdgeQueues`.
            progress_timeout: As in `EdgeQueues`.
        """
        self._link, self._outbox, self._refusal = link, outbox, refusal
        self._is_online = reachable
        self.clock = clock or monotonic_wall_clock()
        self._full, self._sign, self._retry_delays = full, sign, tuple(retry_delays)
        self._recognizes_repeats = recognizes_repeats
        self._pending: dict[str, PendingRequest] = {}
        self._asked: OrderedDict[str, str] = OrderedDict()
        """The agents of the last commands that nobody waits for any more, by id."""
        self._checks = TimerQueue[str](self._check_due)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.closed_waits = ClosedWaits()
        self.counts: Counter[str] = Counter()
        """Reports that were late, foreign or unreadable."""
        self._acks = Acknowledgements(self.send_signed, self.spawn, outbox)
        self._completions = Completions(
            outbox,
            self._pending,
            self.counts,
            completed=self._completed,
            acknowledge=self._acknowledge,
            spawn=self.spawn,
        )
        self.give_up = self._completions.give_up
        """Close a command that timed out without an outcome."""
        self.edge_queues = EdgeQueues(
            link,
            outbox,
            reachable=self._reachable,
            clock=self.clock,
            spawn=self.spawn,
            unsendable=self._completions.unsendable,
            refusal=refusal,
            recognizes_repeats=recognizes_repeats,
            retry_delays=retry_delays,
            progress_timeout=progress_timeout,
        )

    async def ask(
        self,
        agent_id: str,
        command: Command,
        patience: CommandTimeouts,
        progress: Progress | None = None,
        *,
        sign: Callable[[Command], Command] = lambda command: command,
    ) -> Outcome:
        """Run a command once and await its outcome; `ToolFailure` if it was never stored.

        Concurrent requests for the same command share one outcome. A job is answered when it has
        started. `sign` adds the grant when the command is complete, its expiry included.
        """
        self._check_allowed(agent_id)
        pending = self._pending.get(command.request_id)
        first = pending is None
        if pending is None:
            pending = self._pending[command.request_id] = PendingRequest(
                agent_id, command, sign=sign
            )
        elif not pending.is_for(agent_id, command):
            text = "Another command with the same id is in flight; this one was not sent."
            raise ToolFailure(ErrorKind.CONFLICT, text)
        answer = pending.join(progress)
        try:
            try:
                if first:
                    await self._start(pending, patience)
                return await answer
            finally:
                pending.leave(answer)
        except asyncio.CancelledError:
            self._stopped_waiting(pending, patience)
            raise
        finally:
            if not pending.wanted:
                self._forget(pending)

    async def query(self, agent_id: str, command: Command, seconds: float = 10.0) -> Outcome:
        """Send a command that may be repeated: it is not stored, and times out soon."""
        self._check_allowed(agent_id)
        command = self._sign(agent_id, replace(command, queue_ttl_ms=round(seconds * 1000)))
        payload = encode(command)
        self._check_size(payload)
        pending = self._pending[command.request_id] = PendingRequest(agent_id, command, query=True)
        answer = pending.join(None)
        try:
            async with asyncio.timeout(seconds):
                for tries in count():
                    await self.send(agent_id, payload)
                    delay = self._retry_delays[min(tries, len(self._retry_delays) - 1)]
                    if (await asyncio.wait([answer], timeout=delay))[0]:
                        break
                return answer.result()
        except TimeoutError:
            text = f"Agent {agent_id!r} did not answer within {seconds:g}s."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text) from None
        finally:
            pending.leave(answer)
            self._forget(pending)

    async def cancel(self, agent_id: str, request_id: str) -> None:
        """Cancel a command; the edge reports that as its outcome."""
        try:
            row = await self._outbox.get(request_id)
            self.edge_queues.completed(agent_id, request_id)
            if row is None or row.state in FINAL_STATES:
                return
            await self._outbox.mark(request_id, "cancelling")
            if row.state == "queued":
                text = "The call was cancelled before it was sent."
                unsent = failed(request_id, "", ErrorKind.CANCELLED, text)
                await self._completions.close(agent_id, unsent)
            elif not self._recognizes_repeats(agent_id):
                await self.give_up(agent_id, request_id, "call")
            elif self._reachable(agent_id):  # otherwise the welcome after its hello says so
                asked: dict[str, JSON] = {"request_id": request_id}
                await self.query(agent_id, Command("cancel", asked, f"cancel-{token_hex(8)}"))
        except ToolFailure:
            self.counts["cancel unanswered"] += 1
        except EvoClawError:
            self.counts["the store failed"] += 1

    def on_outcome(self, listener: Callable[[str, Outcome], None]) -> None:
        """Call a listener with the edge and the outcome of each stored command."""
        self._completions.on_outcome = listener

    @property
    def max_payload(self) -> int:
        """The largest message that the link takes now, in bytes."""
        return self._link.max_payload

    async def agent_of(self, request_id: str) -> str | None:
        """The agent that a command was for, if it was ever stored."""
        row = await self._outbox.get(request_id)
        return None if row is None else row.agent_id

    def asked(self, agent_id: str, request_id: str) -> Command | None:
        """The stored command that an agent was sent and this process waits for."""
        pending = self._pending.get(request_id)
        if pending is None or pending.agent_id != agent_id or not pending.payload:
            return None
        return pending.command

    def was_asked_here(self, agent_id: str, request_id: str) -> bool:
        """Whether this process waits for a command of an agent, or did a while ago."""
        pending = self._pending.get(request_id)
        asked = self._asked.get(request_id) if pending is None else pending.agent_id
        return asked == agent_id

    def only_pending(self, agent_id: str) -> str:
        """The id of the one command that an agent has not answered; empty if there are several."""
        found = [id_ for id_, pending in self._pending.items() if pending.agent_id == agent_id]
        return found[0] if len(found) == 1 else ""

    def deliver(self, report: Report) -> None:
        """Take a report from its agent."""
        pending = self._pending.get(report.request_id)
        if pending is not None and pending.agent_id != report.agent_id:
            self.counts["from the wrong agent"] += 1
            return
        match report.report_type:
            case ReportType.RESULT | ReportType.ERROR:
                self._take_outcome(report, pending)
            case ReportType.PROGRESS:
                self._take_progress(report, pending)
            case ReportType.CHUNK if pending is not None:
                self._take_chunk(report, pending)
            case _:
                self.counts["unexpected"] += 1

    def awaited_agents(self, min_age_s: float) -> set[str]:
        """The agents that have not answered a command for so many seconds."""
        latest = asyncio.get_running_loop().time() - min_age_s
        return {
            pending.agent_id
            for pending in self._pending.values()
            if not pending.query and pending.asked_at <= latest
        }

    def on_presence(self, agent_id: str, *, online: bool) -> None:
        """Report to the callers that wait for an agent that it went offline, or is back."""
        for pending in tuple(self._pending.values()):
            if pending.agent_id == agent_id:
                pending.on_presence(online=online)

    async def send(self, agent_id: str, command: Command | bytes) -> bool:
        """Publish to an agent; False when the link refuses it."""
        payload = command if isinstance(command, bytes) else encode(command)
        try:
            return await self.edge_queues.publish(agent_id, payload)
        except TooLarge:
            self.counts["too large"] += 1
            return False

    async def send_to_stranger(self, agent_id: str, command: Command) -> bool:
        """Answer a device that wants to join; a revoked edge may be invited again."""
        try:
            await self._link.publish(topic(agent_id, TopicKind.COMMANDS), encode(command))
        except (LinkDown, TooLarge):
            return False
        return True

    async def abandon(self, agent_id: str) -> None:
        """Close all commands of an agent that was revoked; their outcomes are not accepted."""
        refusal = self._refusal(agent_id)
        open_commands = [
            *await self._outbox.wanted(agent_id, self.clock()),
            *await self._outbox.cancelling(agent_id),
        ]
        for row in open_commands:
            if row.state == "queued":
                text = f"The call was not sent: {refusal}."
                unsent = failed(row.request_id, "", ErrorKind.PERMISSION_DENIED, text)
                await self._completions.close(agent_id, unsent)
            else:
                pending = self._pending.get(row.request_id)
                name = "call" if pending is None else pending.name
                await self.give_up(agent_id, row.request_id, name)

    async def send_signed(self, agent_id: str, command: Command) -> bool:
        """Publish a command of the protocol itself, with its grant."""
        return await self.send(agent_id, self._sign(agent_id, command))

    async def close(self, seconds: float = CLOSE_TIMEOUT_S) -> None:
        """Finish sending within the timeout, then stop."""
        self._closed = not seconds
        self._acks.flush()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._tasks and (remaining := end - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=remaining)
        self._closed = True
        self.edge_queues.close()
        self._checks.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Start a background task, unless closed."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pending: PendingRequest, patience: CommandTimeouts) -> None:
        """Store a command and publish it, or leave that to its edge's queue."""
        agent_id, request_id = pending.agent_id, pending.command.request_id
        self._watch(pending, patience)
        pending.expires_at = round(self.clock() + patience.queue, 3)
        ttl = round(patience.queue * 1000)
        command = replace(pending.command, expires_at=pending.expires_at, queue_ttl_ms=ttl)
        direct = kept = False
        try:
            payload = encode(pending.sign(command))
            self._check_size(payload)
            direct = pending.is_sent = self.edge_queues.reserve(agent_id, request_id, payload)
            row = await self._put(pending, payload, sent=direct)
            kept = True
        except ToolFailure as problem:
            pending.fail(problem)
            raise
        finally:
            if direct and not kept:
                self.edge_queues.completed(agent_id, request_id)
        pending.payload = payload
        if row is not None and row.state in FINAL_STATES:
            self.edge_queues.completed(agent_id, request_id)
            pending.settle(stored_outcome(row, pending))
            return
        if not self._reachable(agent_id):
            pending.on_presence(online=False)
        if row is not None and row.state != "queued" and not self._recognizes_repeats(agent_id):
            self.counts["not sent again"] += 1  # before a restart; its answer may still come
        elif direct:
            await self.edge_queues.publish_stored(agent_id, request_id)
        else:
            self.edge_queues.wake(agent_id)

    def _reachable(self, agent_id: str) -> bool:
        return self._is_online(agent_id) and not self._refusal(agent_id)

    def _check_allowed(self, agent_id: str) -> None:
        if refusal := self._refusal(agent_id):
            text = f"The call was not sent: {refusal}. Explain to the user."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)

    def _check_size(self, payload: bytes) -> None:
        size, limit = len(payload), self._link.max_payload
        if size > limit:
            raise ToolFailure(ErrorKind.TOO_LARGE, too_large_message(TooLarge(size, limit)))

    async def _put(
        self, pending: PendingRequest, payload: bytes, *, sent: bool
    ) -> CommandRow | None:
        command = pending.command
        try:
            stored = await self._outbox.put(
                command.request_id,
                pending.agent_id,
                command.run_id,
                payload,
                pending.expires_at,
                sent=sent,
                tenant=command.tenant,
            )
        except RunSuspended:
            raise  # the caller repeats the request
        except EvoClawError as problem:
            kind = ErrorKind.QUEUE_FULL if isinstance(problem, self._full) else ErrorKind.INTERNAL
            text = f"The call was not sent: {problem}. Explain to the user."
            raise ToolFailure(kind, text) from None
        return stored.row

    def _stopped_waiting(self, pending: PendingRequest, patience: CommandTimeouts) -> None:
        """Note that a caller stopped waiting; after the last one the command is cancelled."""
        if not pending.wanted:
            self.spawn(self.cancel(pending.agent_id, pending.command.request_id))
        elif not pending.payload:
            self.spawn(self._start_again(pending, patience))

    async def _start_again(self, pending: PendingRequest, patience: CommandTimeouts) -> None:
        with suppress(ToolFailure):  # the callers get it
            await self._start(pending, patience)

    def _acknowledge(self, agent_id: str, request_id: str) -> None:
        if self._recognizes_repeats(agent_id):
            self._acks.add(agent_id, request_id)

    def _completed(self, agent_id: str, request_id: str) -> None:
        self.edge_queues.completed(agent_id, request_id)
        self.closed_waits.note(request_id)

    def _forget(self, pending: PendingRequest) -> None:
        if self._pending.get(pending.command.request_id) is pending:
            del self._pending[pending.command.request_id]
            self._asked[pending.command.request_id] = pending.agent_id
            if len(self._asked) > MAX_REMEMBERED_REQUESTS:
                self._asked.popitem(last=False)

    def _watch(self, pending: PendingRequest, patience: CommandTimeouts) -> None:
        """Schedule the checks of a pending request's deadlines."""
        now = asyncio.get_running_loop().time()
        pending.must_start = now + patience.queue + START_CHECK_DELAY_S
        pending.must_end = now + patience.total
        self._check_later(pending, now)

    def _check_later(self, pending: PendingRequest, now: float) -> None:
        ahead = pending.must_start if now < pending.must_start else pending.must_end
        pending.check_at = min(now + STORE_POLL_INTERVAL_S, ahead)
        # By its id: what has its outcome must not be kept in memory.
        self._checks.add(pending.check_at, pending.command.request_id)

    def _check_due(self, request_id: str) -> None:
        pending = self._pending.get(request_id)
        if pending is not None and pending.check_at <= asyncio.get_running_loop().time():
            pending.check_at = math.inf
            self.spawn(self._check(pending))

    async def _check(self, pending: PendingRequest) -> None:
        now = asyncio.get_running_loop().time()
        if now >= pending.must_end:
            request_id = pending.command.request_id
            return pending.settle(await self.give_up(pending.agent_id, request_id, pending.name))
        await self._completions.check_store(pending, self.clock())
        if pending.answer is None and pending.wanted:
            self._check_later(pending, now)
        return None

    def _take_outcome(self, report: Report, pending: PendingRequest | None) -> None:
        outcome = read_outcome(report)
        if pending is not None and pending.query:
            pending.settle(outcome)
        elif len(self._tasks) + len(self._completions.storing) >= REPORT_CONCURRENCY:
            self.counts["too many at once"] += 1
        elif not self._completions.take_soon(report.agent_id, outcome):
            unfinished = start_eagerly(self._completions.take(report.agent_id, outcome))
            if unfinished is not None:
                self.spawn(unfinished)

    def _take_progress(self, report: Report, pending: PendingRequest | None) -> None:
        agent_id, request_id = report.agent_id, report.request_id
        if self.edge_queues.on_progress(agent_id, request_id):
            self.spawn(self._accepted(request_id))
        if pending is not None:
            pending.is_sent = True
        if pending is not None and pending.is_job:
            self.edge_queues.on_job_started(agent_id, request_id)
            pending.settle(job_started(request_id, pending.name))

    def _take_chunk(self, report: Report, pending: PendingRequest) -> None:
        try:
            pending.output(convert(report.payload, OutputChunk))
        except WireError:
            self.counts["unreadable chunk"] += 1

    async def _accepted(self, request_id: str) -> None:
        try:
            await self._outbox.mark(request_id, "accepted")
        except EvoClawError:
            self.counts["the store failed"] += 1
