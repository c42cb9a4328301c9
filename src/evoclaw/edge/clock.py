"""`OrchestratorClock`: the orchestrator's time, by which deadlines are set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from evoclaw.transport.clocks import monotonic_clock


class OrchestratorClock:
    """Continues from the last time received, independent of this device's own clock."""

    def __init__(
        self, wall: Callable[[], float] = time.time, ticks: Callable[[], float] = monotonic_clock
    ) -> None:
        self._wall, self._steady = wall, ticks
        self._ahead: float | None = None
        self.loose = 0.0
        """Seconds by which it may be ahead of the orchestrator's."""
        self._known = asyncio.Event()

    def set(self, now: float, waited: float = 0.0) -> None:
        """Take the orchestrator's word, which may be as old as we waited for it.

        So our clock is ahead of its by the way there and back at most, and never behind: a slow
        link gives nobody more time. A word that took long says less than an earlier one that did
        not, and changes nothing unless the two cannot both be true.
        """
        least = now - self._steady()
        if self._ahead is None or not least <= self._ahead <= least + waited:
            self._ahead, self.loose = least + waited, waited
        self._known.set()

    def give_up(self) -> None:
        """Use this device's own clock: no orchestrator has answered."""
        self._known.set()

    async def known(self) -> None:
        """Wait until there is a clock for deadlines: ours alone may be days off."""
        await self._known.wait()

    @property
    def skew(self) -> float:
        """Seconds by which this device's clock is ahead; 0 while the other one is not known."""
        return 0.0 if self._ahead is None else self._wall() - self.now()

    def now(self) -> float:
        """Unix seconds."""
        return self._wall() if self._ahead is None else self._steady() + self._ahead
