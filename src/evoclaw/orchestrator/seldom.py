"""Log throttle: logs a repeated problem at once, then once a minute with a count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

EVERY = 60.0
"""Seconds between two log lines about the same kind of problem."""


class Seldom:
    """Keeps the log readable, and its disk from filling up, while something keeps failing."""

    def __init__(self, every: float = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._unsaid: Counter[str] = Counter()
        self._said: dict[str, float] = {}

    def count(self, kind: str) -> int:
        """Count one occurrence; returns how many to log now, or 0 to log nothing."""
        self._unsaid[kind] += 1
        now, before = self._clock(), self._said.get(kind)
        if before is not None and now - before < self._every:
            return 0
        self._said[kind] = now
        return self._unsaid.pop(kind)


def times(count: int) -> str:
    """How often it happened, as the end of a log line; empty for once."""
    return "" if count == 1 else f" ({count} times since this was last logged)"
