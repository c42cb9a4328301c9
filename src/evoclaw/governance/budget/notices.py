"""Budget notices: tell the model when little of its budget is left."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from evoclaw.core.messages import TextBlock, ToolResult
from evoclaw.core.pipeline import Execution, ResultStep
from evoclaw.governance.budget.policy import RunBudget


@dataclass(frozen=True, slots=True)
class BudgetNotice(ResultStep):
    """Appends a line to the result when the budget passes a threshold, once for each."""

    budget: RunBudget

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Append what is left of the budget, if the model should know."""
        notice = self.budget.notice()
        return replace(result, blocks=(*result.blocks, TextBlock(notice))) if notice else result
