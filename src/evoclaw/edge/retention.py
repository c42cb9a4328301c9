"""What a device keeps beside its calls: the name of its journal, how its tools did, how long."""

from __future__ import annotations

import time
from collections import Counter
from secrets import token_hex

from evoclaw.core.errors import EvoClawError
from evoclaw.edge.device import Limits
from evoclaw.edge.fitness import Outcomes
from evoclaw.store.calls.artifacts import Artifacts
from evoclaw.store.calls.journal import Journal

NAME, OUTCOMES = "journal", "outcomes"
SELDOM = 600.0
"""Seconds between two looks for outputs that have expired."""


class Memory:
    """Kept in the journal; a disk that is full costs figures, never calls."""

    def __init__(
        self,
        journal: Journal,
        outcomes: Outcomes,
        limits: Limits,
        artifacts: Artifacts | None = None,
    ) -> None:
        self._journal, self._outcomes, self._limits = journal, outcomes, limits
        self._artifacts, self._looked = artifacts, 0.0
        self._saved = b""
        self.journal_id = ""
        """Another one when the journal was lost, and with it what this device had done."""
        self.counts: Counter[str] = Counter()

    async def load(self) -> None:
        """Take up what was kept."""
        name = await self._journal.recall(NAME)
        if name is None:
            name = token_hex(8).encode()
            await self._keep(NAME, name)
        self.journal_id = name.decode()
        kept = await self._journal.recall(OUTCOMES)
        if kept is not None:
            try:
                self._outcomes.load(kept)
            except EvoClawError:
                self.counts["outcomes unreadable"] += 1

    async def save(self) -> None:
        """Keep how the tools did, if that has changed."""
        now = self._outcomes.dump()
        if now != self._saved and await self._keep(OUTCOMES, now):
            self._saved = now

    async def forget(self, now: float) -> None:
        """Forget calls that are over and done with, and outputs that have expired."""
        try:
            await self._journal.prune(
                now, window_seconds=self._limits.dedupe_seconds, most=self._limits.dedupe_most
            )
            if self._artifacts is not None and time.monotonic() - self._looked > SELDOM:
                self._looked = time.monotonic()
                await self._artifacts.prune(now)
        except (EvoClawError, OSError):
            self.counts["nothing forgotten"] += 1

    async def _keep(self, key: str, value: bytes) -> bool:
        try:
            await self._journal.remember(key, value)
        except EvoClawError:
            self.counts[f"{key} not kept"] += 1
            return False
        return True
