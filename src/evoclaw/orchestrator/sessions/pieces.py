"""Pieces of a reply or an output on their way to the store: soon, if somebody elsewhere watches.

They are kept together with the next record that matters, as nobody needs them before. But who
watches the run through another process sees only what is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from evoclaw.core.events import Record

SOON = 0.05
"""Seconds in which pieces are gathered for those who watch elsewhere."""
LATEST = 1.0
"""And at most, where the store has much to do."""
SHARE = 5
"""They are gathered for so many times as long as it took to keep the last ones."""


class Pieces:
    """The records of a run that are not kept yet, in order."""

    def __init__(
        self,
        keep: Callable[[Sequence[Record]], Coroutine[Any, Any, None]],
        wanted: Callable[[], bool],
    ) -> None:
        """Choose where they go.

        Args:
            keep: Keeps some; given none, it tells those who watch that there are none.
            wanted: Whether somebody elsewhere watches.
        """
        self._keep, self._wanted = keep, wanted
        self._held: list[Record] = []
        self._soon = SOON
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._problem: BaseException | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, record: Record) -> None:
        """Hold one more."""
        self._held.append(record)
        if self._timer is None and self._wanted():
            self.hurry(self._soon)

    def hurry(self, seconds: float = 0.0) -> None:
        """Keep what is held in so many seconds."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._save)

    async def settled(self) -> None:
        """Wait for those that are being kept; raise what went wrong with them."""
        while self._saving is not None:
            await asyncio.wait([self._saving])
        if self._problem is not None:
            raise self._problem

    def take(self) -> list[Record]:
        """All that are held, for somebody else to keep; `settled` comes first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        return held

    async def close(self) -> None:
        """Keep no more, and wait for nothing."""
        self.take()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])

    def _save(self) -> None:
        self._timer = None
        if self._saving is not None or self._problem is not None:
            return  # when that is done, the rest follows
        held, self._held = self._held, []
        began = asyncio.get_running_loop().time()
        self._saving = asyncio.create_task(self._keep(held))
        self._saving.add_done_callback(partial(self._saved, began))

    def _saved(self, began: float, saving: asyncio.Task[None]) -> None:
        self._saving = None
        took = asyncio.get_running_loop().time() - began
        self._soon = min(max(SOON, SHARE * took), LATEST)
        if not saving.cancelled():
            # Whoever keeps the next record that matters is told.
            self._problem = saving.exception()
        if self._held and self._problem is None:
            self.hurry(self._soon)
