"""Calls that know their place in a trace, so that whoever runs them elsewhere can go on with it."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.tracing import call_span, here, standing


class Traced:
    """Runs each call at its own place in the run's trace."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def tools(self) -> Sequence[Tool]:
        """The very same tools: to make another set of many is dear."""
        return self._inner.tools()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on."""
        place = here()
        if place is None:
            return await self._inner.execute(call, progress)
        with standing(place.child(call_span(call.request_id))):
            return await self._inner.execute(call, progress)
