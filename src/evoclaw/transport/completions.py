"""How commands are completed: the outcome is stored once, then acknowledged, then delivered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.wording import outcome_unknown
from evoclaw.transport.link import TooLarge
from evoclaw.transport.outbox import CLOSED, Kept, Outbox
from evoclaw.transport.outcomes import failed, is_about
from evoclaw.transport.pending_requests import Waiter
from evoclaw.transport.wire import Command, Outcome

AFTER = 0.02
"""Seconds that they are gathered."""
MOST = 500
"""In one message."""


class Acks:
    """What is to be acknowledged, by agent. One that gets lost is asked for by a resend."""

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
            asyncio.get_running_loop().call_later(AFTER, self._due, agent_id)

    def flush(self) -> None:
        """Acknowledge everything now."""
        for agent_id in tuple(self._waiting):
            self._due(agent_id)

    def _due(self, agent_id: str) -> None:
        if agent_id in self._waiting:
            self._spawn(self._say(agent_id))

    async def _say(self, agent_id: str) -> None:
        ids = self._waiting.pop(agent_id, [])
        for start in range(0, len(ids), MOST):
            some: JSON = ids[start : start + MOST]
            await self._send(agent_id, Command("result_ack", {"request_ids": some}))


LOOK = 5.0
"""Seconds between two looks into the store: another process may have been told the outcome."""


class Closings:
    """Wakes those who wait when a command's end was kept."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def note(self, request_id: str) -> None:
        """A command was closed, or may have been."""
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
                    async with asyncio.timeout(LOOK):
                        await event.wait()
                except TimeoutError:
                    continue
        finally:
            waiting = self._waiting[request_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[request_id]


class Foreign(EvoClawError):
    """An outcome of something that this agent was never asked for."""


class Endings:
    """Closes commands, each once."""

    def __init__(
        self,
        outbox: Outbox,
        waiters: Mapping[str, Waiter],
        counts: Counter[str],
        *,
        landed: Callable[[str, str], None],
        acknowledge: Callable[[str, str], None],
    ) -> None:
        self._outbox, self._waiters, self._counts = outbox, waiters, counts
        self._landed, self._acknowledge = landed, acknowledge

    async def take(self, agent_id: str, outcome: Outcome) -> None:
        """Take what an agent says of how a command ended."""
        request_id = outcome.request_id
        try:
            if outcome.refuses and not await self._closes(outcome):
                return
            await self.close(agent_id, outcome)
        except Foreign:
            self._counts["foreign"] += 1
            return
        except EvoClawError:
            self._counts["the store failed"] += 1
            return
        self._acknowledge(agent_id, request_id)

    async def close(self, agent_id: str, outcome: Outcome) -> Outcome:
        """Keep how a command ended, unless it had ended before; tell how it did end."""
        blob = msgspec.json.encode(outcome)
        kept = await self._outbox.settle(outcome.request_id, agent_id, blob)
        if kept == "foreign":
            raise Foreign
        self._landed(agent_id, outcome.request_id)
        if kept == "again":
            row = await self._outbox.get(outcome.request_id)
            if row is not None and row.outcome is not None:
                outcome = msgspec.json.decode(row.outcome, type=Outcome)
        waiter = self._waiters.get(outcome.request_id)
        if waiter is None:
            self._counts["unawaited"] += 1
        else:
            waiter.settle(outcome)
        return outcome

    async def give_up(self, agent_id: str, request_id: str, name: str) -> Outcome:
        """Close a command whose time is over without a word on it: nobody knows how it ended."""
        unknown = failed(request_id, name, ErrorKind.UNKNOWN, outcome_unknown(name))
        try:
            return await self.close(agent_id, unknown)
        except EvoClawError:
            self._counts["the store failed"] += 1
            self._landed(agent_id, request_id)
            return unknown

    async def unsendable(self, agent_id: str, request_id: str, problem: TooLarge) -> None:
        """Close a stored command that no longer fits into a message."""
        await self.take(agent_id, failed(request_id, "", ErrorKind.TOO_LARGE, too_large(problem)))

    async def look(self, waiter: Waiter, now: float) -> None:
        """See whether the store knows more than we were told."""
        try:
            if now >= waiter.expires_at:
                await self._outbox.expire(now)
            row = await self._outbox.get(waiter.command.request_id)
        except EvoClawError:
            self._counts["the store failed"] += 1
            return
        if row is not None and row.state in CLOSED:
            self._landed(waiter.agent_id, waiter.command.request_id)
            waiter.settle(known(row, waiter))

    async def _closes(self, outcome: Outcome) -> bool:
        """Whether a refusal is about the command as it is asked for now."""
        waiter = self._waiters.get(outcome.request_id)
        ours = waiter is not None and is_about(outcome, waiter.payload)
        if outcome.fenced:
            # Whoever took the run over may ask the same again: only the one who is out is told.
            if waiter is not None and ours:
                self._landed(waiter.agent_id, outcome.request_id)
                waiter.settle(outcome)
            return False
        if not ours:
            row = await self._outbox.get(outcome.request_id)
            ours = row is not None and row.state not in CLOSED and is_about(outcome, row.payload)
        if not ours:
            self._counts["refusals of other messages"] += 1
        return ours


def known(row: Kept, waiter: Waiter) -> Outcome:
    """How a closed command ended."""
    if row.outcome is not None:
        return msgspec.json.decode(row.outcome, type=Outcome)
    text = f"Agent {waiter.agent_id!r} was not there in time; {waiter.name!r} was not run."
    return failed(waiter.command.request_id, waiter.name, ErrorKind.EXPIRED, text)


def too_large(problem: TooLarge) -> str:
    """Word a command that does not fit into a message."""
    return f"The call was not sent: {problem}. Pass less, or a path instead of contents."
