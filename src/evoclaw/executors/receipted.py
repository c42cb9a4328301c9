"""Calls that ran on this machine, each with a receipt that says so."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call
from evoclaw.executors.wrapped import Wrapper

Sign: TypeAlias = Callable[[Call, ToolResult, float, float], Awaitable[JSON]]
"""Given a call, its result, and when it began and ended: keeps a receipt, and says what of it."""


class Receipted(Wrapper):
    """An executor whose results are signed here.

    It goes around what runs on this machine: an edge signs for itself, and a second receipt would
    only say that somebody here was told so.
    """

    def __init__(self, inner: Executor, sign: Sign, clock: Callable[[], float] = time.time) -> None:
        super().__init__(inner)
        self._sign, self._clock = sign, clock

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call, and sign how it ended; one that is cut off from outside has no receipt."""
        began = self._clock()
        try:
            result = await super().execute(call, progress)
        except ToolFailure as failure:
            result = call.failed(failure.kind, failure.message, **failure.details)
        signed = await self._sign(call, result, began, self._clock())
        # Whatever a tool said of receipts is not one.
        details = {name: of for name, of in result.details.items() if name != "receipts"}
        return replace(result, details={**details, "receipt": signed})
