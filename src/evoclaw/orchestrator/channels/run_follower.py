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
from evoclaw.orchestrator.channels.inbound import ChannelAnswer, InboundMessage
from evoclaw.orchestrator.runs.hub import WatcherTooSlow
from evoclaw.orchestrator.runs.requests import RunNotFound, RunStatus
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.store.channels import DONE, ChannelStore, StoredInboundMessage
from evoclaw.tools.question import Question

FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 60.0
"""After a failure, at first and at most."""


class RunFollower:
    """Follows the run that answers one message."""

    def __init__(
        self,
        store: ChannelStore,
        runs: Runs,
        stored: StoredInboundMessage,
        message: InboundMessage,
        pending_questions: Callable[[], Awaitable[Sequence[Question]]],
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
        self._store, self._runs, self._stored, self._message = store, runs, stored, message
        self._pending_questions, self._counts = pending_questions, counts
        self._last_seq = 0
        self._run_ended = False

    async def follow(self) -> AsyncGenerator[ChannelAnswer, None]:
        """Yield each answer once it is stored; return when the run has ended."""
        wait = FIRST_RETRY_DELAY_S
        while not self._run_ended:
            try:
                async for answer in self._watch():
                    wait = FIRST_RETRY_DELAY_S
                    yield answer
            except WatcherTooSlow as slow:
                self._last_seq = slow.after
            except EvoClawError:
                self._counts["the store failed"] += 1
            if not self._run_ended:
                await asyncio.sleep(wait)
                wait = min(MAX_RETRY_DELAY_S, wait * 2)

    async def _watch(self) -> AsyncGenerator[ChannelAnswer, None]:
        tenant, run_id = self._stored.tenant, self._stored.run_id
        try:
            watching = self._runs.watch(tenant, run_id, self._last_seq, follow=True)
            async with aclosing(watching) as records:
                async for record in records:
                    if isinstance(end := record.event, RunFinished):
                        yield await self._store_answer(record.seq, end.stop, end.text, end.reason)
                    self._last_seq = record.seq
            view = await self._runs.get(tenant, run_id)
        except RunNotFound:
            lost = "the run was deleted"
            yield await self._store_answer(self._last_seq + 1, StopReason.ERROR, "", lost)
            return
        if not self._run_ended and view is not None and view.state is RunStatus.ENDED:
            stop = view.stop or StopReason.ERROR
            yield await self._store_answer(self._last_seq + 1, stop, view.text, view.reason)

    async def _store_answer(
        self, seq: int, stop: StopReason, text: str, reason: str
    ) -> ChannelAnswer:
        waits = stop is StopReason.WAITING
        now = self._store.clock()
        answer = answers.for_run_end(
            self._message, self._stored.run_id, seq, stop, text, reason, now
        )
        if waits:
            answer = answers.with_question(answer, await self._pending_questions())
        closes = "" if waits else DONE
        await self._store.add_delivery(
            self._stored, answer.id, msgspec.json.encode(answer), message_state=closes
        )
        self._run_ended = not waits
        return answer
