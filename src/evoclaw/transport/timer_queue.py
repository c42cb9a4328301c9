"""`TimerQueue`: one timer of the event loop for many items, most of which end before that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

MIN_INTERVAL_S = 0.02
"""Seconds between two looks at what is due."""


class TimerQueue(Generic[T]):
    """Calls a function with each item when it is due; the function ignores what has ended."""

    def __init__(self, due: Callable[[T], None]) -> None:
        self._due = due
        self._items: list[tuple[float, int, T]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, at: float, item: T) -> None:
        """Call the function with an item at a time of the loop's clock, or a moment later."""
        heappush(self._items, (at, next(self._numbers), item))
        if self._timer is None or at < self._timer.when():
            self._arm(asyncio.get_running_loop(), at)

    def close(self) -> None:
        """Forget all items."""
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now, due = loop.time(), list[T]()
        while self._items and self._items[0][0] <= now:
            due.append(heappop(self._items)[2])
        if self._items:
            self._arm(loop, max(self._items[0][0], now + MIN_INTERVAL_S))
        for item in due:
            self._due(item)
