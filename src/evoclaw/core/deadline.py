"""How long something may go on. Cancelling it brings the deadline forward to now: one mechanism for both."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Deadline:
    """A moment after which work under it is interrupted; children never outlive it."""

    def __init__(self, seconds: float | None = None) -> None:
        """Start counting now; None means no end."""
        self._seconds = seconds
        self._at: float | None = None
        self._scopes: set[asyncio.Timeout] = set()
        self.cancelled = False

    def start(self) -> None:
        """Begin to count, unless it has begun already; needs a running event loop."""
        if self._at is None:
            now = asyncio.get_running_loop().time()
            self._at = math.inf if self._seconds is None else now + self._seconds

    def cancel(self) -> None:
        """Interrupt all work under this deadline; new work under it does not begin."""
        self.cancelled = True
        for scope in tuple(self._scopes):
            if not scope.expired():
                scope.reschedule(0)

    @property
    def left(self) -> float:
        """Seconds left; never negative."""
        if self.cancelled:
            return 0.0
        self.start()
        assert self._at is not None
        return max(0.0, self._at - asyncio.get_running_loop().time())

    @property
    def over(self) -> bool:
        """Whether it has passed or was cancelled."""
        return self.cancelled or self.left <= 0

    @asynccontextmanager
    async def scope(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Raise `TimeoutError` out of the block when the deadline passes, or `seconds` are over.

        Never `yield` events from inside: the interruption would hit whoever consumes them.
        """
        left = self.left if seconds is None else min(self.left, seconds)
        async with asyncio.timeout(None if left == math.inf else left) as timeout:
            self._scopes.add(timeout)
            try:
                yield
            finally:
                self._scopes.discard(timeout)
