"""Deletes sessions, workflow runs and receipts past their retention time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from evoclaw.store.calls.receipts import ReceiptStore
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.sessions.canvases import StoredCanvases
from evoclaw.store.sessions.delete_steps import delete_all_hidden
from evoclaw.store.sessions.expired_sessions import ExpiredSessions
from evoclaw.store.sessions.ratings import RatingStore
from evoclaw.store.workflows.workflows import WorkflowStore

logger = logging.getLogger(__name__)
RETENTION_INTERVAL_S = 3_600.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SessionRetention:
    """Deletes sessions that ended more than so many days ago, with their canvases and ratings.

    Workflow runs and receipts that are as old are deleted, too, except for the last receipt of each
    chain.
    """

    database: Database
    canvases: StoredCanvases
    keep_days: float
    """0 keeps every session."""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Delete now and every hour, until the block ends.

        Also without a retention time, what a process that crashed was deleting is deleted.
        """
        deleting = self._keep_deleting() if self.keep_days else self._delete_interrupted()
        task = asyncio.create_task(deleting)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _delete_interrupted(self) -> None:
        try:
            await delete_all_hidden(self.database)
        except (StoreError, OSError) as problem:
            logger.warning("deleting sessions failed, trying again at the next start: %s", problem)

    async def _keep_deleting(self) -> None:
        expired, receipts = ExpiredSessions(self.database), ReceiptStore(self.database)
        workflows = WorkflowStore(self.database)
        while True:
            before = time.time() - self.keep_days * DAY_S
            try:
                await delete_all_hidden(self.database)
                await expired.delete(before, self._delete_rest)
                await workflows.prune(before)
                await receipts.prune(before)
            except (StoreError, OSError) as problem:
                logger.warning("retention failed, trying again in an hour: %s", problem)
            await asyncio.sleep(RETENTION_INTERVAL_S)

    async def _delete_rest(self, tenant: str, session_id: str) -> None:
        """Delete what belongs to a session and is stored elsewhere."""
        await self.canvases.of(tenant, session_id).clear()
        await RatingStore(self.database).forget(tenant, session_id)
