"""Bounded waiting for something that sends no notification: a file, a process, another task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import cast

TIMEOUT_S = 60.0
"""A busy machine is slow, not wrong."""


async def until(
    condition: Callable[[], object | Awaitable[object]],
    seconds: float = TIMEOUT_S,
    say: str = "",
) -> None:
    """Wait until a condition, or what it is awaited for, is true."""
    try:
        async with asyncio.timeout(seconds):
            for pause in _pauses():
                found = condition()
                if await cast("Awaitable[object]", found) if isawaitable(found) else found:
                    return
                await asyncio.sleep(pause)
    except TimeoutError:
        raise AssertionError(f"not true within {seconds:g} s: {say or condition}") from None


def until_sync(condition: Callable[[], object], seconds: float = TIMEOUT_S, say: str = "") -> None:
    """Wait until a condition is true, in a test without an event loop."""
    end = time.monotonic() + seconds
    for pause in _pauses():
        if condition():
            return
        assert time.monotonic() < end, f"not true within {seconds:g} s: {say or condition}"
        time.sleep(pause)


def _pauses() -> Iterator[float]:
    """Short at first, for what happens in this process; longer for what takes its time anyway."""
    pause = 0.001
    while True:
        yield pause
        pause = min(pause * 1.3, 0.05)
