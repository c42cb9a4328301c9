"""Waits for a task that must not be interrupted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def wait_uncancelled(work: asyncio.Task[Any]) -> None:
    """Wait for a task even if the caller is cancelled; it takes seconds at most."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        # Retrieved, so that asyncio does not log an error that no longer matters.
        work.exception()
