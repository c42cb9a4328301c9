"""How long things took: kept in a few numbers, however many there were."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, log2

BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Seconds; what is counted below each is what a monitoring system wants to know."""
_FINE = 8
"""Steps from one duration to its double: a percentile is right within 5 %."""
_SHORTEST = 1e-6
"""Seconds; what took less counts as this."""


class Durations:
    """A tally of durations."""

    __slots__ = ("_fine", "below", "count", "longest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = self.longest = 0.0
        self.below = [0] * (len(BOUNDS) + 1)
        """How many fall between two of the bounds, and how many are longer than the last."""
        self._fine: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one; a clock that went back makes it the shortest, never a negative one."""
        seconds = max(seconds, _SHORTEST)
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        self.below[bisect_left(BOUNDS, seconds)] += 1
        step = ceil(log2(seconds) * _FINE)
        self._fine[step] = self._fine.get(step, 0) + 1

    @property
    def mean(self) -> float:
        """Seconds, on average; 0 if there were none."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> float:
        """Seconds that this share of them took at most; 0 if there were none."""
        left = share * self.count
        for step in sorted(self._fine):
            left -= self._fine[step]
            if left <= 0:
                middle: float = 2 ** ((step - 0.5) / _FINE)
                return min(middle, self.longest)
        return self.longest

    def include(self, other: Durations) -> None:
        """Count all that another tally has counted, too."""
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)
        self.below = [a + b for a, b in zip(self.below, other.below, strict=True)]
        for step, count in other._fine.items():
            self._fine[step] = self._fine.get(step, 0) + count
