"""One timer for many deadlines."""

from __future__ import annotations

import asyncio

from evoclaw.transport.timer_queue import TimerQueue
from tests.support.waiting import until


async def test_items_are_reported_in_the_order_of_their_times() -> None:
    seen: list[str] = []
    queue = TimerQueue[str](seen.append)
    now = asyncio.get_running_loop().time()
    for delay, name in ((0.05, "third"), (0.0, "first"), (0.03, "second")):
        queue.add(now + delay, name)
    await until(lambda: len(seen) == 3)
    assert seen == ["first", "second", "third"]


async def test_an_item_that_is_added_again_while_it_is_reported_comes_again() -> None:
    seen: list[int] = []

    def due(item: int) -> None:
        seen.append(item)
        if item < 3:
            queue.add(0.0, item + 1)

    queue = TimerQueue[int](due)
    queue.add(asyncio.get_running_loop().time() + 1000, 99)
    queue.add(0.0, 1)
    await until(lambda: seen == [1, 2, 3])


async def test_a_closed_queue_reports_nothing() -> None:
    seen: list[int] = []
    queue = TimerQueue[int](seen.append)
    queue.add(0.0, 1)
    queue.close()
    queue.add(0.0, 2)
    await until(lambda: bool(seen))
    assert seen == [2], "only what was added after it"
