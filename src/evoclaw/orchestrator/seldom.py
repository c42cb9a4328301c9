"""Trouble that lasts: said at once, then at most once a minute, with how often it happened."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

EVERY = 60.0
"""Seconds between two sayings of the same."""


class Seldom:
    """Keeps a log readable, and the disk it is on from filling, while something goes on failing."""

    def __init__(self, every: float = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._unsaid: Counter[str] = Counter()
        self._said: dict[str, float] = {}

    def count(self, kind: str) -> int:
        """Note that it happened; if it is to be said, how often it did since it was, else 0."""
        self._unsaid[kind] += 1
        now, before = self._clock(), self._said.get(kind)
        if before is not None and now - before < self._every:
            return 0
        self._said[kind] = now
        return self._unsaid.pop(kind)


def times(count: int) -> str:
    """How often, as the end of a line in a log; nothing for once."""
    return "" if count == 1 else f" ({count} times since this was last said)"
