"""Reconnecting, for every link: run until the connection is lost, back off, try again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from evoclaw.transport.link import LinkDown

STEADY_AFTER_S = 10.0
"""A connection that lived this long was a good one: the next wait is short again."""


class Backoff:
    """How long to wait before the next try: exponential, with full jitter.

    A thousand parties that lost their broker at the same moment must not come back at the same.
    """

    def __init__(self, *, first: float = 0.25, cap: float = 30.0) -> None:
        self._first, self._cap = first, cap
        self._tries = 0

    def wait(self, lived: float) -> float:
        """Seconds to wait after a connection that lived this long; 0 if there was none."""
        if lived >= STEADY_AFTER_S:
            self._tries = 0
        # Bounded: two to the power of a week of tries is no float.
        longest = min(self._cap, self._first * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return random.uniform(0.0, longest)


async def until_lost(opening: Coroutine[Any, Any, None], lost: asyncio.Future[str]) -> str:
    """Make a connection and greet the party, wait until it is lost, and return why.

    The loss also ends the opening: a party that waits for an answer while it is greeted would
    wait for ever. What the opening raises is raised here, except that the link is down.
    """
    task = asyncio.create_task(opening)
    try:
        await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled() and task.exception() is None:
            # Not awaited itself: cancelling us must not cancel it.
            await asyncio.wait((lost,))
    finally:
        task.cancel()
        await asyncio.wait((task,))
    with suppress(LinkDown, asyncio.CancelledError):
        task.result()
    return lost.result() if lost.done() else str(LinkDown())
