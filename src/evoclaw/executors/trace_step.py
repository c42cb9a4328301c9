"""Traces: the span of a call is current while the call runs, so that other machines continue it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.tracing import call_span, current_trace, use_trace


class TraceCall(AroundStep):
    """Makes the span of the call current while it runs."""

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Enter the span, if the run is traced."""
        parent = current_trace()
        if parent is None:
            yield
            return
        with use_trace(parent.child(call_span(execution.call.request_id))):
            yield
