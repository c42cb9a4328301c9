"""Calls that know their place in a trace, so that whoever runs them elsewhere can go on with it."""

from __future__ import annotations

from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call
from evoclaw.core.tracing import call_span, here, standing
from evoclaw.executors.wrapped import Wrapper


class Traced(Wrapper):
    """Runs each call at its own place in the run's trace."""

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on."""
        place = here()
        if place is None:
            return await super().execute(call, progress)
        with standing(place.child(call_span(call.request_id))):
            return await super().execute(call, progress)
