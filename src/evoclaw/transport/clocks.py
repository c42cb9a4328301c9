"""Monotonic clocks: deadlines do not move when the system time is set."""

from __future__ import annotations

import time
from collections.abc import Callable


def monotonic_clock() -> float:
    """Seconds that only go forward, those asleep included where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def monotonic_wall_clock(
    wall: Callable[[], float] = time.time, ticks: Callable[[], float] = monotonic_clock
) -> Callable[[], float]:
    """The time of day as it was when this was called, going on steadily from there."""
    began = wall() - ticks()
    return lambda: began + ticks()
