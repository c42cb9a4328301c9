"""Delivers stored messages with exponential backoff; those that fail for too long are given up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.store.channels import DEAD, DUE, SENT

logger = logging.getLogger(__name__)
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 600.0
"""Before the second attempt, and between two attempts at most."""
DELIVERY_LEASE_S = 120.0
"""For one attempt; longer than any channel's own timeout."""
DELIVERY_CONCURRENCY = 16
"""Attempts at the same time on one channel."""
MAX_PROBLEM_CHARS = 500


class PendingDelivery(Protocol):
    """A stored message that is to be delivered."""

    @property
    def attempts(self) -> int:
        """How often it was tried before."""
        ...

    @property
    def made_at(self) -> float:
        """When it was stored, in Unix seconds."""
        ...


D = TypeVar("D", bound=PendingDelivery)


class DeliveryStore(Protocol[D]):
    """Where messages are stored until they are delivered; shared by several processes."""

    @property
    def clock(self) -> Callable[[], float]:
        """Unix seconds."""
        ...

    async def claim_deliveries(
        self, channels: Sequence[str], lease_s: float, limit: int
    ) -> tuple[Sequence[D], float | None]:
        """Claim due deliveries for a time; and when the next one is due."""
        ...

    async def settle_delivery(
        self, delivery: D, state: str, problem: str = "", next_at: float = 0.0
    ) -> None:
        """Record the result of an attempt: `SENT`, `DEAD`, or `DUE` again at `next_at`."""
        ...


class DeliveryWorker(Generic[D]):
    """Delivers the messages of one channel: a slow channel does not delay the others."""

    def __init__(
        self,
        store: DeliveryStore[D],
        channel: str,
        send: Callable[[D], Awaitable[None]],
        timeout_s: float,
        counts: Counter[str],
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare to deliver the messages of a channel.

        Args:
            store: Where undelivered messages are stored.
            channel: The name of the channel.
            send: Delivers a message, or raises `Undelivered`.
            timeout_s: After which a message that cannot be delivered is given up.
            counts: Counters of the results.
            jitter: Gives numbers from 0 to 1, which spread the retries.
        """
        self._store, self._channel, self._send = store, channel, send
        self._timeout_s = timeout_s
        self._counts, self._jitter = counts, jitter
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Look for due messages now."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled; deliveries in progress are retried later."""
        try:
            while True:
                self._woken.clear()
                wait = await self._start_due()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                self._reap_done()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _start_due(self) -> float:
        """Start due deliveries; return the seconds until the next one is due."""
        free = DELIVERY_CONCURRENCY - len(self._tasks)
        if not free:
            return MAX_RETRY_DELAY_S  # the end of any delivery wakes the worker
        try:
            claimed, next_at = await self._store.claim_deliveries(
                (self._channel,), DELIVERY_LEASE_S, free
            )
        except EvoClawError:
            # Nothing is lost: the messages are still stored, and the store is asked again soon.
            self._counts["the store failed"] += 1
            return FIRST_RETRY_DELAY_S
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery))
            self._tasks.add(task)
            task.add_done_callback(lambda _: self.wake())
        if next_at is None:
            return MAX_RETRY_DELAY_S
        return max(0.0, min(MAX_RETRY_DELAY_S, next_at - self._store.clock()))

    def _reap_done(self) -> None:
        for task in tuple(self._tasks):
            if task.done():
                self._tasks.discard(task)
                if (error := task.exception()) is not None:
                    # Its message is due again when the lease expires; the others continue.
                    logger.error("a delivery on channel %s crashed", self._channel, exc_info=error)
                    self._counts["not delivered"] += 1

    async def _deliver(self, delivery: D) -> None:
        problem: Undelivered | None = None
        try:
            async with asyncio.timeout(DELIVERY_LEASE_S / 2):
                await self._send(delivery)
        except Undelivered as error:
            problem = error
        except TimeoutError:
            problem = Undelivered(f"the attempt took longer than {DELIVERY_LEASE_S / 2:g} s")
        try:
            await self._settle(delivery, problem)
        except EvoClawError:
            self._counts["the store failed"] += 1  # the message is delivered once more later

    async def _settle(self, delivery: D, problem: Undelivered | None) -> None:
        if problem is None:
            self._counts["delivered"] += 1
            return await self._store.settle_delivery(delivery, SENT)
        self._counts["not delivered"] += 1
        reason, now = one_line(str(problem), MAX_PROBLEM_CHARS), self._store.clock()
        # The stored count does not include this attempt.
        wait = min(MAX_RETRY_DELAY_S, FIRST_RETRY_DELAY_S * 2 ** min(delivery.attempts, 20)) * (
            0.5 + self._jitter() / 2
        )
        if problem.retry_after is not None:
            wait = max(wait, min(problem.retry_after, MAX_RETRY_DELAY_S))
        if problem.final or now + wait > delivery.made_at + self._timeout_s:
            self._counts["given up"] += 1
            return await self._store.settle_delivery(delivery, DEAD, reason)
        return await self._store.settle_delivery(delivery, DUE, reason, now + wait)
