"""Log throttle: logs a repeated problem at once, then once a minute with a count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

LOG_REPEAT_INTERVAL_S = 60.0
"""Seconds between two log lines about the same kind of problem."""


class LogThrottle:
    """Keeps the log readable, and its disk from filling up, while something keeps failing."""

    def __init__(
        self, interval_s: float = LOG_REPEAT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._unlogged: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def count(self, kind: str) -> int:
        """Count one occurrence; returns how many to log now, or 0 to log nothing."""
        self._unlogged[kind] += 1
        now, before = self._clock(), self._logged_at.get(kind)
        if before is not None and now - before < self._interval_s:
            return 0
        self._logged_at[kind] = now
        return self._unlogged.pop(kind)


def repeat_suffix(count: int) -> str:
    """How often it happened, as the end of a log line; empty for once."""
    return "" if count == 1 else f" ({count} times since this was last logged)"
