"""Places for calls that run: first come, first served; how many there are may change meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Places:
    """A semaphore whose number is looked up each time."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_free(self) -> bool:
        """Whether there is a place, and nobody waits for it."""
        return self._taken < self._most() and not self._waiting

    def take(self) -> None:
        """Take a place that is free."""
        self._taken += 1

    async def wait(self) -> None:
        """Wait for a place, and take it."""
        if self.is_free:
            return self.take()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()  # it was given to us just now
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def leave(self) -> None:
        """Give a place back."""
        self._taken -= 1
        self.changed()

    def changed(self) -> None:
        """Hand out what is free: there may be more places than before."""
        while self._waiting and self._taken < self._most():
            place = self._waiting.popleft()
            if not place.done():
                self._taken += 1
                place.set_result(None)
