"""Limits per caller: request rate, body size and body time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from litestar.types import HTTPReceiveMessage, Receive

from evoclaw.api.errors import ApiError

MAX_TRACKED_CALLERS = 10_000
"""Callers whose rate is tracked; the least recently seen is dropped first."""
REFUSED_BODY_DRAIN_TIMEOUT_S = 1.0
"""How long the rest of a refused body is read, so that the client can read the response."""
MAX_REFUSED_BODY_DRAIN_BYTES = 32 << 20


class RequestRateLimiter:
    """A token bucket for each key: a rate per minute and a burst."""

    def __init__(
        self, per_minute: int, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s, self._burst, self._clock = 60.0 / per_minute, burst, clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """By key: when its bucket is full again."""

    def take(self, key: str) -> float:
        """Take one token; returns 0, or the seconds to wait if the bucket is empty."""
        now = self._clock()
        full_at = max(now, self._full_at.get(key, now)) + self._interval_s
        wait = full_at - now - self._burst * self._interval_s
        if wait > 1e-9:
            return wait
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > MAX_TRACKED_CALLERS:
            self._full_at.popitem(last=False)
        return 0.0


class BoundedBody:
    """The `receive` of a request, with a limit on the size and time of the body."""

    def __init__(self, receive: Receive, max_bytes: int, seconds: float) -> None:
        self._receive, self._max_bytes, self._seconds = receive, max_bytes, seconds
        self._size, self._deadline, self._is_complete = 0, 0.0, False

    async def __call__(self) -> HTTPReceiveMessage:
        """The next message; `ApiError` 408 or 413 if the body is too slow or too large."""
        if self._is_complete:
            return await self._next()
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._seconds
        try:
            async with asyncio.timeout(self._deadline - now):
                message = await self._next()
        except TimeoutError:
            text = f"The body did not arrive within {self._seconds:g} s. Send it again, faster."
            raise ApiError(408, "too_slow", text) from None
        if message["type"] == "http.disconnect":
            # Only for the log: the client has disconnected, and this is no internal error.
            raise ApiError(
                400, "incomplete", "The client disconnected before the body was complete."
            )
        self._size += len(message["body"])
        self._is_complete = not message["more_body"]
        if self._size > self._max_bytes:
            await self.drain()
            raise too_large(self._max_bytes)
        return message

    async def drain(self) -> None:
        """Read the rest for a moment: a client that is cut off while sending never reads why."""
        left = MAX_REFUSED_BODY_DRAIN_BYTES
        try:
            async with asyncio.timeout(REFUSED_BODY_DRAIN_TIMEOUT_S):
                while not self._is_complete and left > 0:
                    message = await self._next()
                    if message["type"] != "http.request":
                        return
                    self._is_complete = not message["more_body"]
                    left -= len(message["body"])
        except TimeoutError:
            return

    async def _next(self) -> HTTPReceiveMessage:
        message = await self._receive()
        if message["type"] == "http.request":
            message.setdefault("body", b"")
            message.setdefault("more_body", False)
        return message  # pyright: ignore[reportReturnType]


def too_large(max_bytes: int) -> ApiError:
    """The error for a body over the limit."""
    return ApiError(
        413,
        "too_large",
        f"The body is larger than {max_bytes} bytes. Send a smaller request.",
        details={"max_bytes": max_bytes},
    )
