"""Monotonic clocks: deadlines do not move when the system time is set."""

from __future__ import annotations

import time
from collections.abc import Callable


def monotonic_clock() -> float:
    """Monotonic seconds, including time asleep where the system counts it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def monotonic_wall_clock(
    wall: Callable[[], float] = time.time, ticks: Callable[[], float] = monotonic_clock
) -> Callable[[], float]:
    """A clock that starts at the current time of day and continues monotonically."""
    offset = wall() - ticks()
    return lambda: offset + ticks()
