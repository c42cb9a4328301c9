"""Receipts of the calls that this machine ran itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.pipeline import Execution, ResultStep
from evoclaw.core.routes import Place
from evoclaw.core.tools import Call

Sign: TypeAlias = Callable[[Call, ToolResult, float, float], Awaitable[JSON]]
"""Stores a receipt of a call, its result, its start and end; returns the summary to show."""


class SignReceipt(ResultStep):
    """Signs the results of calls that ran on this machine; an edge signs its own."""

    def __init__(self, sign: Sign) -> None:
        self._sign = sign

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Sign how the call ended; a call that was cancelled from outside has no receipt."""
        if execution.route.place is not Place.HERE:
            return result
        signed = await self._sign(execution.call, result, execution.started, execution.ended)
        # Whatever a tool said of receipts is not one.
        details = {name: of for name, of in result.details.items() if name != "receipts"}
        return replace(result, details={**details, "receipt": signed})
