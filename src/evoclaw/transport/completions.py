"""Completes commands: the outcome is stored once, then acknowledged, then delivered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping

import msgspec

from evoclaw.core.commands import FINAL_STATES, CommandRow
from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.wording import outcome_unknown
from evoclaw.transport.link import TooLarge
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.outcomes import failed, is_about
from evoclaw.transport.pending_requests import PendingRequest
from evoclaw.transport.wire import Command, Outcome

ACK_DELAY_S = 0.02
"""How long acknowledgements are collected."""
MAX_ACKS_PER_MESSAGE = 500
"""Acknowledgements in one message."""


class Acknowledgements:
    """Results to acknowledge, by agent. If an acknowledgement is lost, the edge resends."""

    def __init__(
        self,
        send: Callable[[str, Command], Coroutine[object, object, bool]],
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._send, self._spawn = send, spawn
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
    ) -> None:
        self._outbox, self._pending, self._counts = outbox, pending_requests, counts
        self._completed, self._acknowledge = completed, acknowledge

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
        if kept == "foreign":
            raise ForeignOutcome
        self._completed(agent_id, outcome.request_id)
        if kept == "again":
            row = await self._outbox.get(outcome.request_id)
            if row is not None and row.outcome is not None:
                outcome = msgspec.json.decode(row.outcome, type=Outcome)
        pending = self._pending.get(outcome.request_id)
        if pending is None:
            self._counts["unawaited"] += 1
        else:
            pending.settle(outcome)
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
        """Check whether the store has an outcome that we did not receive."""
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
        """Whether a refusal is about the command as it is asked for now."""
        pending = self._pending.get(outcome.request_id)
        ours = pending is not None and is_about(outcome, pending.payload)
        if outcome.fenced:
            # The orchestrator that took the run over may send it again: only we are answered.
            if pending is not None and ours:
                self._completed(pending.agent_id, outcome.request_id)
                pending.settle(outcome)
            return False
        if not ours:
            row = await self._outbox.get(outcome.request_id)
            ours = (
                row is not None and row.state not in FINAL_STATES and is_about(outcome, row.payload)
            )
        if not ours:
            self._counts["refusals of other messages"] += 1
        return ours


def stored_outcome(row: CommandRow, pending: PendingRequest) -> Outcome:
    """The outcome of a closed command."""
    if row.outcome is not None:
        return msgspec.json.decode(row.outcome, type=Outcome)
    text = f"Agent {pending.agent_id!r} was offline until it expired; {pending.name!r} was not run."
    return failed(pending.command.request_id, pending.name, ErrorKind.EXPIRED, text)


def too_large_message(problem: TooLarge) -> str:
    """Word a command that does not fit into a message."""
    return f"The call was not sent: {problem}. Pass less, or a path instead of contents."
