"""Coroutines begun by hand."""

from __future__ import annotations

import asyncio

import pytest

from evoclaw.core.eager import start_eagerly


async def test_a_coroutine_that_never_awaits_finishes_when_started() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    assert start_eagerly(work()) is None
    assert done == [1]


async def test_a_coroutine_that_awaits_continues_in_a_task() -> None:
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        first = await gate
        await asyncio.sleep(0)
        return first + 1

    left = start_eagerly(work())
    assert left is not None
    task = asyncio.create_task(left)
    gate.set_result(1)
    assert await task == 2


async def test_a_continued_coroutine_can_be_cancelled_and_may_ignore_it() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "not yet"

    left = start_eagerly(stubborn())
    assert left is not None
    task = asyncio.create_task(left)
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "not yet"


async def test_a_coroutine_that_fails_at_once_raises_when_started() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        start_eagerly(work())
