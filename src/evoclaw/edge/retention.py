"""`EdgeRetention`: stores a device's journal id and tool outcomes, and prunes old records."""

from __future__ import annotations

import time
from collections import Counter
from secrets import token_hex

from evoclaw.core.errors import EvoClawError
from evoclaw.edge.device import DeviceLimits
from evoclaw.edge.fitness import Outcomes
from evoclaw.store.calls.artifacts import ArtifactStore
from evoclaw.store.calls.before_images import BeforeImages
from evoclaw.store.calls.journal import Journal

NAME_KEY, OUTCOMES_KEY = "journal", "outcomes"
CLEANUP_INTERVAL_S = 600.0
"""How often expired outputs are removed."""


class EdgeRetention:
    """Stored in the journal; a full disk loses metrics, never calls."""

    def __init__(
        self,
        journal: Journal,
        outcomes: Outcomes,
        limits: DeviceLimits,
        artifacts: ArtifactStore | None = None,
        images: BeforeImages | None = None,
    ) -> None:
        self._journal, self._outcomes, self._limits = journal, outcomes, limits
        self._artifacts, self._images, self._looked = artifacts, images, -CLEANUP_INTERVAL_S
        self._saved = b""
        self.journal_id = ""
        """Changes when the journal was lost, and with it the record of earlier calls."""
        self.counts: Counter[str] = Counter()

    async def load(self) -> None:
        """Load what was stored."""
        name = await self._journal.recall(NAME_KEY)
        if name is None:
            name = token_hex(8).encode()
            await self._keep(NAME_KEY, name)
        self.journal_id = name.decode()
        kept = await self._journal.recall(OUTCOMES_KEY)
        if kept is not None:
            try:
                self._outcomes.load(kept)
            except EvoClawError:
                self.counts["outcomes unreadable"] += 1

    async def save(self) -> None:
        """Store the tool outcomes, if they have changed."""
        now = self._outcomes.dump()
        if now != self._saved and await self._keep(OUTCOMES_KEY, now):
            self._saved = now

    async def forget(self, now: float) -> None:
        """Remove acknowledged calls and outputs that have expired."""
        try:
            await self._journal.prune(
                now,
                window_seconds=self._limits.dedupe_retention_s,
                max_calls=self._limits.max_remembered_calls,
            )
            if time.monotonic() - self._looked > CLEANUP_INTERVAL_S:
                self._looked = time.monotonic()
                if self._artifacts is not None:
                    await self._artifacts.prune(now)
                if self._images is not None:
                    await self._images.prune()
        except (EvoClawError, OSError):
            self.counts["nothing forgotten"] += 1

    async def _keep(self, key: str, value: bytes) -> bool:
        try:
            await self._journal.remember(key, value)
        except EvoClawError:
            self.counts[f"{key} not kept"] += 1
            return False
        return True
