"""Follows the run of an inbound message to its end, across restarts, and stores its answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import RunFinished, StopReason
from evoclaw.orchestrator.channels import answers
from evoclaw.orchestrator.channels.letters import Answer, Letter
from evoclaw.orchestrator.errands import NoRun, State
from evoclaw.orchestrator.runs.hub import TooSlow
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.store.channels import DONE, ChannelStore, StoredLetter
from evoclaw.tools.question import Question

AGAIN, LONGEST = 1.0, 60.0
"""After a failure, at first and at most."""


class Following:
    """Follows the run that answers one message."""

    def __init__(
        self,
        store: ChannelStore,
        runs: Runs,
        kept: StoredLetter,
        letter: Letter,
        asked: Callable[[], Awaitable[Sequence[Question]]],
        counts: Counter[str],
    ) -> None:
        """Prepare to follow a run.

        Args:
            store: Where answers are stored until they are delivered.
            runs: The runs.
            stored: The stored message; its run has started.
            message: The decoded message.
            pending_questions: Gives the unanswered questions of its session.
            counts: Counters of failures.
        """
        self._store, self._runs, self._kept, self._letter = store, runs, kept, letter
        self._asked, self._counts = asked, counts
        self._after = 0
        self._over = False

    async def told(self) -> AsyncGenerator[Answer, None]:
        """Yield each answer once it is stored; return when the run has ended."""
        wait = AGAIN
        while not self._over:
            try:
                async for answer in self._watched():
                    wait = AGAIN
                    yield answer
            except TooSlow as slow:
                self._after = slow.after
            except EvoClawError:
                self._counts["the store failed"] += 1
            if not self._over:
                await asyncio.sleep(wait)
                wait = min(LONGEST, wait * 2)

    async def _watched(self) -> AsyncGenerator[Answer, None]:
        tenant, run_id = self._kept.tenant, self._kept.run_id
        try:
            watching = self._runs.watch(tenant, run_id, self._after, follow=True)
            async with aclosing(watching) as records:
                async for record in records:
                    if isinstance(end := record.event, RunFinished):
                        yield await self._tell(record.seq, end.stop, end.text, end.reason)
                    self._after = record.seq
            view = await self._runs.look(tenant, run_id)
        except NoRun:
            lost = "the run was deleted"
            yield await self._tell(self._after + 1, StopReason.ERROR, "", lost)
            return
        if not self._over and view is not None and view.state is State.ENDED:
            stop = view.stop or StopReason.ERROR
            yield await self._tell(self._after + 1, stop, view.text, view.reason)

    async def _tell(self, seq: int, stop: StopReason, text: str, reason: str) -> Answer:
        waits = stop is StopReason.WAITING
        now = self._store.clock()
        answer = answers.ended(self._letter, self._kept.run_id, seq, stop, text, reason, now)
        if waits:
            answer = answers.asking(answer, await self._asked())
        closes = "" if waits else DONE
        await self._store.owe(self._kept, answer.id, msgspec.json.encode(answer), closes=closes)
        self._over = not waits
        return answer
