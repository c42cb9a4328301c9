"""Brings answers back: tried until they arrive, later and later, and given up in the open."""

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
"""Seconds before a second try, and between two at most."""
LEASE = 120.0
"""Seconds that one try may take; longer than any channel takes by itself."""
AT_ONCE = 16
LONGEST_PROBLEM = 500


class Deliveries:
    """Delivers what is owed on one channel: a slow one keeps no other waiting."""

    def __init__(
        self,
        store: ChannelStore,
        channel: Channel,
        patience: float,
        counts: Counter[str],
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Choose the parts.

        Args:
            store: Where it is kept what is owed.
            channel: The way to those who are to be told.
            patience: Seconds after which an answer is given up.
            counts: Where it is counted what became of them.
            jitter: From 0 to 1: spreads the tries, so that not all come at once.
        """
        self._store, self._channel, self._patience = store, channel, patience
        self._counts, self._jitter = counts, jitter
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """There is something to deliver."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled; what is under way then is tried again later."""
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
        """Begin what is due; how long nothing else will be."""
        free = AT_ONCE - len(self._tasks)
        if not free:
            return LONGEST  # the end of any of them is told
        try:
            claimed, next_at = await self._store.claim((self._channel.name,), LEASE, free)
        except EvoClawError:
            # What is owed is still owed: the store is asked again in a moment.
            self._counts["the store failed"] += 1
            return FIRST
        for one in claimed:
            task = asyncio.create_task(self._deliver(one))
            self._tasks.add(task)
            task.add_done_callback(lambda _: self.wake())
        if next_at is None:
            return LONGEST
        return max(0.0, min(LONGEST, next_at - self._store.clock()))

    def _look_at_ended(self) -> None:
        for task in tuple(self._tasks):
            if task.done():
                self._tasks.discard(task)
                if (fault := task.exception()) is not None:
                    # What it was to deliver is due again later; the others do not wait for it.
                    logger.error("a delivery on %s failed", self._channel.name, exc_info=fault)
                    self._counts["not delivered"] += 1

    async def _deliver(self, owed: StoredDelivery) -> None:
        letter = msgspec.json.decode(owed.letter, type=Letter)
        answer = msgspec.json.decode(owed.answer, type=Answer)
        problem: Undelivered | None = None
        try:
            async with asyncio.timeout(LEASE / 2):
                await self._channel.send(letter, answer)
        except Undelivered as told:
            problem = told
        except TimeoutError:
            problem = Undelivered(f"it took longer than {LEASE / 2:g} s")
        try:
            await self._settle(owed, problem)
        except EvoClawError:
            self._counts["the store failed"] += 1  # so it is delivered once more, later

    async def _settle(self, owed: StoredDelivery, problem: Undelivered | None) -> None:
        if problem is None:
            self._counts["delivered"] += 1
            return await self._store.settle(owed.seq, SENT)
        self._counts["not delivered"] += 1
        said, now = one_line(str(problem), LONGEST_PROBLEM), self._store.clock()
        # This was one more attempt than the stored one knows of.
        wait = min(LONGEST, FIRST * 2 ** min(owed.attempts, 20)) * (0.5 + self._jitter() / 2)
        if problem.retry_after is not None:
            wait = max(wait, min(problem.retry_after, LONGEST))
        if problem.final or now + wait > owed.made_at + self._patience:
            self._counts["given up"] += 1
            return await self._store.settle(owed.seq, DEAD, said)
        return await self._store.settle(owed.seq, DUE, said, now + wait)
