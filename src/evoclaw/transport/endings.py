"""How commands end: kept once, then acknowledged, then told. What is acknowledged is never lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import ErrorKind
from evoclaw.core.wording import outcome_unknown
from evoclaw.transport.link import TooLarge
from evoclaw.transport.outbox import CLOSED, Kept, Outbox
from evoclaw.transport.outcomes import failed, is_about
from evoclaw.transport.waiters import Waiter
from evoclaw.transport.wire import Outcome


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
