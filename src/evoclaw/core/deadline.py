"""Deadlines: how long work may take. To cancel is to bring the deadline forward to now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from evoclaw.core.eager import continue_coroutine

T = TypeVar("T")


class Deadline:
    """A moment after which the work under it is interrupted.

    One timer serves all its work. It is armed with the first piece of work; `release` cancels it.
    """

    __slots__ = ("_at", "_scopes", "_seconds", "_timer", "cancelled", "over")

    def __init__(self, seconds: float | None = None) -> None:
        """Allow `seconds` from when the work starts; None means no limit."""
        self._seconds = seconds
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scopes: set[_Scope] = set()
        self.cancelled = False
        """Whether `cancel` was called."""
        self.over = False
        """Whether the deadline has passed: no work may run or start under it."""

    def start(self) -> None:
        """Start to count, or arm the timer again after `release`."""
        loop = asyncio.get_running_loop()
        if self._at is None:
            self._at = math.inf if self._seconds is None else loop.time() + self._seconds
        if self._at == math.inf or self.over:
            return
        if self._at <= loop.time():
            self.expire()
        elif self._timer is None:
            self._timer = loop.call_at(self._at, self.expire)

    def release(self) -> None:
        """Cancel the timer when the work under this deadline is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cancel(self) -> None:
        """Interrupt all work under this deadline now."""
        self.cancelled = True
        self.expire()

    @property
    def left(self) -> float:
        """Seconds left, such as for the deadline of a sub-run."""
        if self.over:
            return 0.0
        self.start()
        assert self._at is not None
        return max(0.0, self._at - asyncio.get_running_loop().time())

    async def bound(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Await `work`; raise `TimeoutError` if the deadline, or `seconds`, passes first.

        Work that never waits needs no timer: it is started right here, and only what is left of it
        when it first waits is put under the deadline.
        """
        try:
            waiting = work.send(None)
        except StopIteration as done:
            return done.value
        with _Scope(self._scopes, 0.0 if self.over else seconds):
            return await continue_coroutine(work, waiting)

    def expire(self) -> None:
        """End the deadline now, as if the time had passed."""
        self.over = True
        self.release()
        for scope in tuple(self._scopes):
            scope.interrupt()


class _Scope:
    """A block of one task that a deadline can interrupt, like `asyncio.timeout` but lighter."""

    __slots__ = ("_cancelling", "_interrupted", "_scopes", "_seconds", "_task", "_timer")

    def __init__(self, scopes: set[_Scope], seconds: float | None) -> None:
        self._scopes = scopes
        self._seconds = seconds
        self._interrupted = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline interrupts tasks"
        self._task = task
        self._cancelling = task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        if self._seconds is not None:
            self._timer = task.get_loop().call_later(self._seconds, self.interrupt)
        self._scopes.add(self)

    def interrupt(self) -> None:
        """End the block."""
        if not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scopes.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        # Our own cancellation becomes TimeoutError; any other cancellation propagates.
        if (
            self._interrupted
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error
