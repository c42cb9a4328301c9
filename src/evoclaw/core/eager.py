"""Eagerly started coroutines: one that never waits needs neither a task nor a timer."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def start_eagerly(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T] | None:
    """Run a coroutine until it first waits; return the rest, to be awaited in a task, or None.

    Until it waits it has no task of its own: it must not ask for the current task before.
    """
    try:
        waiting = work.send(None)
    except StopIteration:
        return None
    return _finish(work, waiting)


async def _finish(work: Coroutine[Any, Any, T], waiting: Any) -> T:
    return await continue_coroutine(work, waiting)


@coroutine
def continue_coroutine(work: Coroutine[Any, Any, T], waiting: Any) -> Generator[Any, Any, T]:
    """Await the rest of a coroutine that was started and now waits for `waiting`."""
    while True:
        try:
            yield waiting
        except BaseException as error:
            try:
                waiting = work.throw(error)
            except StopIteration as done:
                return done.value
        else:
            return (yield from work.__await__())


def mark_retrieved(task: Task[Any]) -> None:
    """Mark the exception of a task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
