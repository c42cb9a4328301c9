"""Waiting for a command to be closed without having asked for it, as for a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LOOK = 5.0
"""Seconds between two looks into the store: another process may have been told the outcome."""


class Closings:
    """Wakes those who wait when a command's end was kept."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def note(self, request_id: str) -> None:
        """A command was closed, or may have been."""
        for event in self._waiting.get(request_id, ()):
            event.set()

    async def wait(self, request_id: str, is_closed: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the store says that it is closed."""
        event = asyncio.Event()
        self._waiting.setdefault(request_id, set()).add(event)
        try:
            while not await is_closed():
                event.clear()
                try:
                    async with asyncio.timeout(LOOK):
                        await event.wait()
                except TimeoutError:
                    continue
        finally:
            waiting = self._waiting[request_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[request_id]
