"""Control requests that came in through another orchestrator: cancel, steer, resume.

A request that is missed here is found a little later by polling: see `RunSupervisor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from evoclaw.orchestrator.runs.driving import RunDriver
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import TenantKey
from evoclaw.store.databases.notices import Notice, NoticeKind
from evoclaw.store.runs.inbox import Inbox

MAX_PENDING_CONTROL_REQUESTS = 10_000
"""Control requests that may be pending; further ones are found by polling."""


class ControlRequests:
    """Control requests that were received and are not performed yet."""

    def __init__(
        self,
        driver: RunDriver,
        conversations: Conversations,
        inbox: Inbox,
        *,
        cancel: Callable[[str, str], Awaitable[None]],
        resume: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Choose the parts.

        Args:
            driver: The active runs of this process.
            conversations: The active sub-runs of this process.
            inbox: The stored control requests.
            cancel: Cancels a run.
            resume: Resumes a waiting run.
        """
        self._driver, self._conversations, self._inbox = driver, conversations, inbox
        self._cancel, self._resume = cancel, resume
        self._pending: dict[tuple[str, TenantKey], None] = {}
        self._available = asyncio.Event()

    def on_notice(self, notice: Notice | None) -> None:
        """Enqueue the control request of a notice: in order, each once."""
        if notice is not None and notice.kind in (
            NoticeKind.CANCELLED,
            NoticeKind.MESSAGE_SENT,
            NoticeKind.ANSWERED,
        ):
            self._enqueue(notice.kind, (notice.tenant, notice.run_id))

    def _enqueue(self, kind: str, key: TenantKey) -> None:
        if len(self._pending) < MAX_PENDING_CONTROL_REQUESTS:
            self._pending[kind, key] = None
            self._available.set()

    async def serve(
        self, attempt: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    ) -> None:
        """Perform requests until cancelled; `attempt` runs one that may fail."""
        while True:
            await self._available.wait()
            self._available.clear()
            pending, self._pending = self._pending, {}
            for kind, key in pending:
                await attempt(partial(self._perform, kind, key))

    async def _perform(self, kind: str, key: TenantKey) -> None:
        active = self._driver.active.get(key)
        if kind == NoticeKind.CANCELLED:
            # A run that no process drives is closed by the orchestrator that got the request.
            if active is not None or key in self._conversations.subruns:
                await self._cancel(*key)
        elif kind == NoticeKind.MESSAGE_SENT:
            if active is not None:
                await self._driver.deliver_steering(active)
        elif active is not None:
            # The run may be about to wait for this answer: check again when it stops.
            active.task.add_done_callback(lambda _: self._enqueue(kind, key))
        elif await self._inbox.is_answered(*key):
            await self._resume(*key)
