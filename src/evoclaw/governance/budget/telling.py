"""An executor that tells the model when little of its budget is left."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.messages import TextBlock, ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.budget.policy import Budget


class Telling:
    """Adds a line to a result, once for each threshold that was passed."""

    def __init__(self, inner: Executor, budget: Budget) -> None:
        self._inner, self._budget = inner, budget

    def tools(self) -> Sequence[Tool]:
        """Those of the executor inside."""
        return self._inner.tools()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run the call; say what is left if the model should know."""
        result = await self._inner.execute(call, progress)
        news = self._budget.news()
        return replace(result, blocks=(*result.blocks, TextBlock(news))) if news else result
