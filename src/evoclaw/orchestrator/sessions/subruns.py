"""Sub-runs: their limits, how many are active, and how one is stopped with its parent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from msgspec import Struct

from evoclaw.core.deadline import Deadline
from evoclaw.governance.budget.settings import BudgetSettings

SUBRUN_CANCEL_GRACE_S = 5.0
"""Seconds that a cancelled sub-run has to record how far it came."""


class RunLimits(Struct, frozen=True):
    """What a run and all its sub-runs may spend together, and how many there may be."""

    budget: BudgetSettings = BudgetSettings()
    max_depth: int = 3
    """Levels of sub-runs below a run."""
    max_concurrent_per_run: int = 4
    """Concurrent sub-runs of one run; the others wait for a slot."""
    max_active: int = 16
    """Active sub-runs of the whole tree; more are rejected."""


@dataclass(eq=False, slots=True)
class SubrunTree:
    """All sub-runs below a root run."""

    limits: RunLimits
    active_count: int = 0
    """Sub-runs that were started and have not ended."""


@dataclass(eq=False, slots=True)
class ActiveSubrun:
    """A sub-run that is active beside its parent run."""

    run_id: str
    session_id: str
    deadline: Deadline
    task: asyncio.Task[None]

    async def stop(self, *, clean: bool) -> None:
        """Stop the sub-run and wait for its task.

        Args:
            clean: Cancel it, so that its records say so; else interrupt it where it is, to be
                continued when the parent run is resumed.
        """
        if clean:
            self.deadline.cancel()
            await asyncio.wait([self.task], timeout=SUBRUN_CANCEL_GRACE_S)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
