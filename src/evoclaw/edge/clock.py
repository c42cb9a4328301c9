"""What time it is for the orchestrator: deadlines are set by its clock, not by this device's."""

from __future__ import annotations

import time
from collections.abc import Callable


class OrchestratorClock:
    """Runs on from the last time it was told, whatever happens to this device's own clock."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._ahead: float | None = None

    def set(self, now: float) -> None:
        """Take the orchestrator's word; what it took to arrive makes us late, never early."""
        self._ahead = now - self._steady()

    @property
    def skew(self) -> float:
        """Seconds by which this device's clock is ahead; 0 while the other one is not known."""
        return 0.0 if self._ahead is None else self._wall() - self.now()

    def now(self) -> float:
        """Unix seconds."""
        return self._wall() if self._ahead is None else self._steady() + self._ahead
