"""Clocks that nobody can set: a deadline is a span, whatever happens to the time of day."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady() -> float:
    """Seconds that only go forward, those asleep included where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def steady_wall(
    wall: Callable[[], float] = time.time, ticks: Callable[[], float] = steady
) -> Callable[[], float]:
    """The time of day as it was when this was called, going on steadily from there."""
    began = wall() - ticks()
    return lambda: began + ticks()
