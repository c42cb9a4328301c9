"""Waiting for the end of a task that must not be cut short."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def wait_uncancelled(work: asyncio.Task[Any]) -> None:
    """Wait for a task whatever else is cancelled meanwhile; it takes seconds at most."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        # Seen, so that nobody warns of an error that no longer matters.
        work.exception()
