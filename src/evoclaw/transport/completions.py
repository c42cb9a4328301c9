"""Completes commands: the outcome is stored once, then acknowledged, then delivered.

A `PendingRequest` is a command whose outcome one or several callers wait for.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping

import msgspec

from evoclaw.core.commands import FINAL_STATES, CommandRow, SettleResult
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Delay, Progress
from evoclaw.core.wording import outcome_unknown
from evoclaw.transport.link import TooLarge
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.outcomes import failed, is_about
from evoclaw.transport.wire import Command, Outcome, OutputChunk, fingerprint

MAX_OUTPUT_CHARS = 1_000_000
"""Output of a call that is forwarded while it runs; the rest is dropped."""


class PendingRequest:
    """A command that one or several callers wait for."""

    __slots__ = (
        "_joined",
        "agent_id",
        "command",
        "_problem",
        "answer",
        "expires_at",
        "must_start",
        "must_end",
        "payload",
        "seq",
        "sign",
        "query",
        "check_at",
        "delivered",
        "is_sent",
        "asked_at",
        "_is_delayed",
    )

    def __init__(
        self,
        agent_id: str,
        command: Command,
        *,
        query: bool = False,
        sign: Callable[[Command], Command] = lambda command: command,
    ) -> None:
        self.agent_id, self.command, self.sign = agent_id, command, sign
        self.query = query
        """It may be repeated, so it is not stored."""
        self.payload = b""
        """The message as last published; empty until it was stored, and for a query."""
        self.expires_at = 0.0
        self.must_start = self.must_end = 0.0
        """When these deadlines are checked, by the loop's clock."""
        self.check_at = math.inf
        """When one of them, or the store, is checked next, by the loop's clock."""
        self.asked_at = asyncio.get_running_loop().time()
        self.is_sent = False
        """Whether its agent may have started it: then it is awaited until `must_end`."""
        self._is_delayed = False
        self.answer: Outcome | None = None
        self.seq = self.delivered = 0
        self._problem: ToolFailure | None = None
        self._joined: dict[asyncio.Future[Outcome], Progress | None] = {}

    @property
    def wanted(self) -> bool:
        """Whether a caller still waits."""
        return bool(self._joined)

    @property
    def is_job(self) -> bool:
        """Whether it is answered as soon as it has started."""
        return self.command.payload.get("background") is True

    @property
    def name(self) -> str:
        """The tool, or the command."""
        tool = self.command.payload.get("tool")
        return tool if isinstance(tool, str) else self.command.command

    def is_for(self, agent_id: str, command: Command) -> bool:
        """Whether this is the same command to the same agent."""
        target = (self.agent_id, self.command.tenant)
        return target == (agent_id, command.tenant) and (
            fingerprint(command) == fingerprint(self.command)
        )

    def join(self, progress: Progress | None) -> asyncio.Future[Outcome]:
        """Wait for the outcome, and get its output before, until `leave`."""
        # One future for each caller: a caller that stops waiting cancels its own.
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._joined[answer] = progress
        self._deliver(answer)
        return answer

    def leave(self, answer: asyncio.Future[Outcome]) -> None:
        """Note that a caller no longer waits."""
        del self._joined[answer]

    def output(self, chunk: OutputChunk) -> None:
        """Pass on a chunk of output, each once and in order."""
        if chunk.seq > self.seq and self.delivered < MAX_OUTPUT_CHARS:
            self.seq, self.delivered = chunk.seq, self.delivered + len(chunk.text)
            for progress in self._joined.values():
                if progress is not None:
                    progress(chunk.text)

    def on_presence(self, *, online: bool) -> None:
        """Report to the callers that the agent went offline, or is online again."""
        if online is not self._is_delayed or self.answer is not None:
            return
        self._is_delayed = not online
        until = self.must_end if self.is_sent else self.must_start
        left = 0.0 if online else max(until - asyncio.get_running_loop().time(), 1.0)
        for progress in self._joined.values():
            if progress is not None:
                progress(Delay(self.agent_id, round(left, 1)))

    def settle(self, outcome: Outcome) -> None:
        """Deliver the outcome; only the first counts."""
        if self.answer is None:
            self.answer = outcome
            self._deliver(*self._joined)

    def fail(self, problem: ToolFailure) -> None:
        """Tell the callers that it was never sent."""
        self._problem = problem
        self._deliver(*self._joined)

    def _deliver(self, *waiting: asyncio.Future[Outcome]) -> None:
        for future in waiting:
            if future.done():
                continue
            if self.answer is not None:
                future.set_result(self.answer)
            elif self._problem is not None:
                future.set_exception(self._problem)
                future.exception()  # retrieved: the sender raises it itself


ACK_DELAY_S = 0.5
"""How long acknowledgements are collected; the edge resends a result after two seconds."""
MAX_ACKS_PER_MESSAGE = 500
"""Acknowledgements in one message."""


class Acknowledgements:
    """Results to acknowledge, by agent. If an acknowledgement is lost, the edge resends."""

    def __init__(
        self,
        send: Callable[[str, Command], Coroutine[object, object, bool]],
        spawn: Callable[[Coroutine[object, object, None]], None],
        outbox: Outbox,
    ) -> None:
        self._send, self._spawn, self._outbox = send, spawn, outbox
        self._waiting: dict[str, list[str]] = {}

    def add(self, agent_id: str, request_id: str) -> None:
        """Acknowledge a result soon."""
        waiting = self._waiting.setdefault(agent_id, [])
        waiting.append(request_id)
        if len(waiting) == 1:
            asyncio.get_running_loop().call_later(ACK_DELAY_S, self._due, agent_id)

    def flush(self) -> None:
        """Acknowledge everything now."""
        for agent_id in tuple(self._waiting):
            self._due(agent_id)

    def _due(self, agent_id: str) -> None:
        if agent_id in self._waiting:
            self._spawn(self._send_acks(agent_id))

    async def _send_acks(self, agent_id: str) -> None:
        ids = self._waiting.pop(agent_id, [])
        try:
            await self._outbox.flush()
        except EvoClawError:
            return
        for start in range(0, len(ids), MAX_ACKS_PER_MESSAGE):
            some: JSON = ids[start : start + MAX_ACKS_PER_MESSAGE]
            await self._send(agent_id, Command("result_ack", {"request_ids": some}))


STORE_POLL_INTERVAL_S = 5.0
"""How often the store is checked: another process may have received the outcome."""


class ClosedWaits:
    """Wakes the callers that wait until a command is closed in the store."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def note(self, request_id: str) -> None:
        """Note that a command was closed, or may have been."""
        for event in self._waiting.get(request_id, ()):
            event.set()

    async def wait(self, request_id: str, is_closed: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the store says that it is closed."""
        event = asyncio.Event()
        self._waiting.setdefault(request_id, set()).add(event)
        try:
            while not await is_closed():
                event.clear()
                try:
                    async with asyncio.timeout(STORE_POLL_INTERVAL_S):
                        await event.wait()
                except TimeoutError:
                    continue
        finally:
            waiting = self._waiting[request_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[request_id]


class ForeignOutcome(EvoClawError):
    """The outcome of a command that this agent was never sent."""


class Completions:
    """Completes commands, each once."""

    def __init__(
        self,
        outbox: Outbox,
        pending_requests: Mapping[str, PendingRequest],
        counts: Counter[str],
        *,
        completed: Callable[[str, str], None],
        acknowledge: Callable[[str, str], None],
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._outbox, self._pending, self._counts = outbox, pending_requests, counts
        self._completed, self._acknowledge, self._spawn = completed, acknowledge, spawn
        self.on_outcome: Callable[[str, Outcome], None] = lambda agent_id, outcome: None
        """Called with the outcome of each stored command, once in all processes."""
        self.storing: set[str] = set()
        """Commands whose outcome is being stored, without a task that waits for it."""

    def take_soon(self, agent_id: str, outcome: Outcome) -> bool:
        """`take` without a task, if the store can do that; False if it cannot."""
        request_id = outcome.request_id
        if outcome.refuses:
            return False
        if request_id in self.storing:
            return True  # a copy; if the first cannot be stored, the agent reports it again
        self.storing.add(request_id)
        try:
            started = self._outbox.settle_soon(
                request_id,
                agent_id,
                msgspec.json.encode(outcome),
                on_result=lambda kept: self._on_settled(agent_id, outcome, kept),
                on_failure=lambda _: self._on_not_settled(request_id),
            )
        except EvoClawError:
            self._on_not_settled(request_id)
            return True
        if not started:
            self.storing.discard(request_id)
        return started

    def _on_settled(self, agent_id: str, outcome: Outcome, kept: SettleResult) -> None:
        self.storing.discard(outcome.request_id)
        if kept is SettleResult.FIRST:
            self.on_outcome(agent_id, outcome)
            self._deliver(agent_id, outcome)
            self._acknowledge(agent_id, outcome.request_id)
        else:  # another outcome may count, which must be read
            self._spawn(self.take(agent_id, outcome))

    def _on_not_settled(self, request_id: str) -> None:
        self.storing.discard(request_id)
        self._counts["the store failed"] += 1

    def _deliver(self, agent_id: str, outcome: Outcome) -> None:
        self._completed(agent_id, outcome.request_id)
        pending = self._pending.get(outcome.request_id)
        if pending is None:
            self._counts["unawaited"] += 1
        else:
            pending.settle(outcome)

    async def take(self, agent_id: str, outcome: Outcome) -> None:
        """Take the outcome that an agent reports."""
        request_id = outcome.request_id
        try:
            if outcome.refuses and not await self._closes(outcome):
                return
            await self.close(agent_id, outcome)
        except ForeignOutcome:
            self._counts["foreign"] += 1
            return
        except EvoClawError:
            self._counts["the store failed"] += 1
            return
        self._acknowledge(agent_id, request_id)

    async def close(self, agent_id: str, outcome: Outcome) -> Outcome:
        """Store an outcome, unless there was one before; return the one that counts."""
        blob = msgspec.json.encode(outcome)
        kept = await self._outbox.settle(outcome.request_id, agent_id, blob)
        if kept is SettleResult.FOREIGN:
            raise ForeignOutcome
        if kept is SettleResult.AGAIN:
            row = await self._outbox.get(outcome.request_id)
            if row is not None and row.outcome is not None:
                outcome = msgspec.json.decode(row.outcome, type=Outcome)
        else:
            self.on_outcome(agent_id, outcome)
        self._deliver(agent_id, outcome)
        return outcome

    async def give_up(self, agent_id: str, request_id: str, name: str) -> Outcome:
        """Close a command that timed out without an outcome, as unknown."""
        unknown = failed(request_id, name, ErrorKind.UNKNOWN, outcome_unknown(name))
        try:
            return await self.close(agent_id, unknown)
        except EvoClawError:
            self._counts["the store failed"] += 1
            self._completed(agent_id, request_id)
            return unknown

    async def unsendable(self, agent_id: str, request_id: str, problem: TooLarge) -> None:
        """Close a stored command that no longer fits into a message."""
        await self.take(
            agent_id, failed(request_id, "", ErrorKind.TOO_LARGE, too_large_message(problem))
        )

    async def check_store(self, pending: PendingRequest, now: float) -> None:
        """Check whether the store has an outcome that this process did not receive."""
        try:
            if now >= pending.expires_at:
                await self._outbox.expire(now)
            row = await self._outbox.get(pending.command.request_id)
        except EvoClawError:
            self._counts["the store failed"] += 1
            return
        if row is not None and row.state in FINAL_STATES:
            self._completed(pending.agent_id, pending.command.request_id)
            pending.settle(stored_outcome(row, pending))

    async def _closes(self, outcome: Outcome) -> bool:
        """Whether a refusal is about the command as it was last sent."""
        pending = self._pending.get(outcome.request_id)
        matches = pending is not None and is_about(outcome, pending.payload)
        if outcome.fenced:
            # The orchestrator that took the run over may send the command again: the refusal
            # settles only the request of this process, and not the stored command.
            if pending is not None and matches:
                self._completed(pending.agent_id, outcome.request_id)
                pending.settle(outcome)
            return False
        if not matches:
            row = await self._outbox.get(outcome.request_id)
            matches = (
                row is not None and row.state not in FINAL_STATES and is_about(outcome, row.payload)
            )
        if not matches:
            self._counts["refusals of other messages"] += 1
        return matches


def stored_outcome(row: CommandRow, pending: PendingRequest) -> Outcome:
    """The outcome of a closed command."""
    if row.outcome is not None:
        return msgspec.json.decode(row.outcome, type=Outcome)
    text = f"Agent {pending.agent_id!r} was offline until it expired; {pending.name!r} was not run."
    return failed(pending.command.request_id, pending.name, ErrorKind.EXPIRED, text)


def too_large_message(problem: TooLarge) -> str:
    """Word a command that does not fit into a message."""
    return f"The call was not sent: {problem}. Send less, or a path instead of the contents."
