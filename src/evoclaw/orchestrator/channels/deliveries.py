"""Delivers answers with exponential backoff; those that fail for too long are dead letters."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.channels.letters import Answer, Channel, Letter, Undelivered
from evoclaw.orchestrator.cleaning import one_line
from evoclaw.store.channels import DEAD, DUE, SENT, ChannelStore, StoredDelivery

logger = logging.getLogger(__name__)
FIRST, LONGEST = 1.0, 600.0
"""Before the second attempt, and between two attempts at most."""
LEASE = 120.0
"""For one attempt; longer than any channel's own timeout."""
AT_ONCE = 16
"""Attempts at the same time on one channel."""
LONGEST_PROBLEM = 500


class Deliveries:
    """Delivers the answers of one channel: a slow channel does not delay the others."""

    def __init__(
        self,
        store: ChannelStore,
        channel: Channel,
        patience: float,
        counts: Counter[str],
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare to deliver the answers of a channel.

        Args:
            store: Where undelivered answers are stored.
            channel: Delivers an answer.
            timeout_s: After which an answer that cannot be delivered becomes a dead letter.
            counts: Counters of the results.
            jitter: Gives numbers from 0 to 1, which spread the retries.
        """
        self._store, self._channel, self._patience = store, channel, patience
        self._counts, self._jitter = counts, jitter
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Look for due answers now."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled; deliveries in progress are retried later."""
        try:
            while True:
                self._woken.clear()
                wait = await self._begin_some()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                self._look_at_ended()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _begin_some(self) -> float:
        """Start due deliveries; return the seconds until the next one is due."""
        free = AT_ONCE - len(self._tasks)
        if not free:
            return LONGEST  # the end of any delivery wakes the worker
        try:
            claimed, next_at = await self._store.claim((self._channel.name,), LEASE, free)
        except EvoClawError:
            # Nothing is lost: the answers are still stored, and the store is asked again soon.
            self._counts["the store failed"] += 1
            return FIRST
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery))
            self._tasks.add(task)
            task.add_done_callback(lambda _: self.wake())
        if next_at is None:
            return LONGEST
        return max(0.0, min(LONGEST, next_at - self._store.clock()))

    def _look_at_ended(self) -> None:
        for task in tuple(self._tasks):
            if task.done():
                self._tasks.discard(task)
                if (error := task.exception()) is not None:
                    # Its answer is due again when the lease expires; the others go on.
                    logger.error(
                        "a delivery on channel %s crashed", self._channel.name, exc_info=error
                    )
                    self._counts["not delivered"] += 1

    async def _deliver(self, owed: StoredDelivery) -> None:
        message = msgspec.json.decode(owed.letter, type=Letter)
        answer = msgspec.json.decode(owed.answer, type=Answer)
        problem: Undelivered | None = None
        try:
            async with asyncio.timeout(LEASE / 2):
                await self._channel.send(message, answer)
        except Undelivered as error:
            problem = error
        except TimeoutError:
            problem = Undelivered(f"the attempt took longer than {LEASE / 2:g} s")
        try:
            await self._settle(owed, problem)
        except EvoClawError:
            self._counts["the store failed"] += 1  # the answer is delivered once more later

    async def _settle(self, owed: StoredDelivery, problem: Undelivered | None) -> None:
        if problem is None:
            self._counts["delivered"] += 1
            return await self._store.settle(owed.seq, SENT)
        self._counts["not delivered"] += 1
        reason, now = one_line(str(problem), LONGEST_PROBLEM), self._store.clock()
        # The stored count does not include this attempt.
        wait = min(LONGEST, FIRST * 2 ** min(owed.attempts, 20)) * (0.5 + self._jitter() / 2)
        if problem.retry_after is not None:
            wait = max(wait, min(problem.retry_after, LONGEST))
        if problem.final or now + wait > owed.made_at + self._patience:
            self._counts["given up"] += 1
            return await self._store.settle(owed.seq, DEAD, reason)
        return await self._store.settle(owed.seq, DUE, reason, now + wait)
