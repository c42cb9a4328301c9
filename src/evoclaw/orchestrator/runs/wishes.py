"""What people want of runs, said through another orchestrator: done as soon as it is heard.

Whatever is missed here is found by looking, a little later: see `Tending`.
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
"""Wishes that wait to be done; more are found by looking."""


class Wishes:
    """What was heard and is not done yet."""

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
            driving: The runs that go on in this process.
            talks: The sub-runs that do.
            inbox: What is wanted.
            end: Has a run end.
            wake: Goes on with a run that waits.
        """
        self._driving, self._talks, self._inbox = driving, talks, inbox
        self._end, self._wake = end, wake
        self._heard: dict[tuple[str, Key], None] = {}
        self._some = asyncio.Event()

    def told(self, notice: Notice | None) -> None:
        """Take in one, in the order heard; each once."""
        if notice is not None and notice.kind in (Kind.CANCELLED, Kind.SAID, Kind.ANSWERED):
            self._put(notice.kind, (notice.tenant, notice.run_id))

    def _put(self, kind: str, key: Key) -> None:
        if len(self._heard) < MOST:
            self._heard[kind, key] = None
            self._some.set()

    async def serve(
        self, trying: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    ) -> None:
        """Do what is heard, until cancelled; `trying` does one thing that may fail."""
        while True:
            await self._some.wait()
            self._some.clear()
            heard, self._heard = self._heard, {}
            for kind, key in heard:
                await trying(partial(self._do, kind, key))

    async def _do(self, kind: str, key: Key) -> None:
        driven = self._driving.live.get(key)
        if kind == Kind.CANCELLED:
            # One that goes on nowhere is ended by whoever was asked.
            if driven is not None or key in self._talks.children:
                await self._end(*key)
        elif kind == Kind.SAID:
            if driven is not None:
                await self._driving.hear(driven)
        elif driven is not None:
            # It may be about to wait for just that: to be looked at when it does.
            driven.task.add_done_callback(lambda _: self._put(kind, key))
        elif await self._inbox.is_answered(*key):
            await self._wake(*key)
