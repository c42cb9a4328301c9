"""Control requests that came in through another orchestrator: cancel, steer, resume.

A request that is missed here is found a little later by polling: see `RunSupervisor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from evoclaw.orchestrator.runs.driving import Driving
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import Key
from evoclaw.store.databases.notices import Kind, Notice
from evoclaw.store.runs.inbox import Inbox

MOST = 10_000
"""Control requests that may be pending; further ones are found by polling."""


class Wishes:
    """Control requests that were received and are not performed yet."""

    def __init__(
        self,
        driving: Driving,
        talks: Conversations,
        inbox: Inbox,
        *,
        end: Callable[[str, str], Awaitable[None]],
        wake: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Choose the parts.

        Args:
            driver: The active runs of this process.
            conversations: The active sub-runs of this process.
            inbox: The stored control requests.
            cancel: Cancels a run.
            resume: Resumes a waiting run.
        """
        self._driving, self._talks, self._inbox = driving, talks, inbox
        self._end, self._wake = end, wake
        self._heard: dict[tuple[str, Key], None] = {}
        self._some = asyncio.Event()

    def told(self, notice: Notice | None) -> None:
        """Enqueue the control request of a notice: in order, each once."""
        if notice is not None and notice.kind in (Kind.CANCELLED, Kind.SAID, Kind.ANSWERED):
            self._put(notice.kind, (notice.tenant, notice.run_id))

    def _put(self, kind: str, key: Key) -> None:
        if len(self._heard) < MOST:
            self._heard[kind, key] = None
            self._some.set()

    async def serve(
        self, trying: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    ) -> None:
        """Perform requests until cancelled; `attempt` runs one that may fail."""
        while True:
            await self._some.wait()
            self._some.clear()
            pending, self._heard = self._heard, {}
            for kind, key in pending:
                await trying(partial(self._do, kind, key))

    async def _do(self, kind: str, key: Key) -> None:
        active = self._driving.live.get(key)
        if kind == Kind.CANCELLED:
            # A run that no process drives is closed by the orchestrator that got the request.
            if active is not None or key in self._talks.children:
                await self._end(*key)
        elif kind == Kind.SAID:
            if active is not None:
                await self._driving.hear(active)
        elif active is not None:
            # The run may be about to wait for this answer: check again when it stops.
            active.task.add_done_callback(lambda _: self._put(kind, key))
        elif await self._inbox.is_answered(*key):
            await self._wake(*key)
