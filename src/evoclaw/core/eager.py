"""Coroutines begun by hand: most of them never wait, and then need neither a task nor a timer."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T] | None:
    """Run it until it first waits; what is left of it then, to be awaited in a task.

    Until it waits there is no task of its own: it must not ask for the current one before.
    """
    try:
        waiting = work.send(None)
    except StopIteration:
        return None
    return _go_on(work, waiting)


async def _go_on(work: Coroutine[Any, Any, T], waiting: Any) -> T:
    return await rest(work, waiting)


@coroutine
def rest(work: Coroutine[Any, Any, T], waiting: Any) -> Generator[Any, Any, T]:
    """Await what is left of a coroutine that was begun and now waits for `waiting`."""
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
