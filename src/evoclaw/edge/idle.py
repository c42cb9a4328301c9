"""The second deadline of a job: it must not only end in time but show that it is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.edge.live import Live


@contextmanager
def watched(live: Live, seconds: float | None) -> Generator[None]:
    """End a call that says nothing for so long; None lets it be silent."""
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def look() -> None:
        nonlocal timer
        left = live.heard + seconds - loop.time()
        if left > 0:
            timer = loop.call_later(left, look)
        else:
            live.silent = True
            live.deadline.expire()

    timer = loop.call_later(seconds, look)
    try:
        yield
    finally:
        timer.cancel()
