"""How much one caller may ask for: requests a minute, and the size and time of a body."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from litestar.types import HTTPReceiveMessage, Receive

from evoclaw.api.errors import Refused

MOST_KEYS = 10_000
"""Callers whose use is remembered; the one that was away longest is forgotten first."""
LINGER = 1.0
"""Seconds in which the rest of a refused body is read, so that the refusal arrives."""
LINGER_BYTES = 8 << 20


class Rates:
    """So many a minute for each, and so many of them at once."""

    def __init__(
        self, per_minute: int, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._each, self._burst, self._clock = 60.0 / per_minute, burst, clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """By key, when its bucket is full again."""

    def take(self, key: str) -> float:
        """Take one; 0, or the seconds after which there is one again."""
        now = self._clock()
        full_at = max(now, self._full_at.get(key, now)) + self._each
        wait = full_at - now - self._burst * self._each
        if wait > 1e-9:
            return wait
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > MOST_KEYS:
            self._full_at.popitem(last=False)
        return 0.0


class BoundedBody:
    """A request's body, as long as it is not too much and does not take too long."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._size, self._until, self._whole = 0, 0.0, False

    async def __call__(self) -> HTTPReceiveMessage:
        """The next piece; `Refused` if there is no end to it."""
        if self._whole:
            return await self._next()
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._seconds
        try:
            async with asyncio.timeout(self._until - now):
                message = await self._next()
        except TimeoutError:
            text = f"the body was not there within {self._seconds:g} s; send it again, faster"
            raise Refused(408, "too_slow", text) from None
        if message["type"] == "http.disconnect":
            # For the log alone: nobody is left to read it, and nothing is broken.
            raise Refused(400, "incomplete", "the connection ended before the body was whole")
        self._size += len(message["body"])
        self._whole = not message["more_body"]
        if self._size > self._most:
            await self.linger()
            raise too_large(self._most)
        return message

    async def linger(self) -> None:
        """Read on for a moment: who is cut off while sending never sees why."""
        left = LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER):
                while not self._whole and left > 0:
                    message = await self._next()
                    if message["type"] != "http.request":
                        return
                    self._whole = not message["more_body"]
                    left -= len(message["body"])
        except TimeoutError:
            return

    async def _next(self) -> HTTPReceiveMessage:
        message = await self._receive()
        if message["type"] == "http.request":
            message.setdefault("body", b"")
            message.setdefault("more_body", False)
        return message  # pyright: ignore[reportReturnType]


def too_large(most: int) -> Refused:
    """A body is more than we take."""
    return Refused(
        413,
        "too_large",
        f"the body is larger than {most} bytes; send less at once",
        details={"max_bytes": most},
    )
