"""A call begins when what led to it is on the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call
from evoclaw.executors.wrapped import Wrapper


class Settled(Wrapper):
    """Waits for the disk before each call. Calls of edges need it not: their commands wait."""

    def __init__(self, inner: Executor, settle: Callable[[], Awaitable[None]]) -> None:
        """`settle` returns when everything that was written before is on the disk."""
        super().__init__(inner)
        self._settle = settle

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Wait, then hand the call on."""
        await self._settle()
        return await super().execute(call, progress)
