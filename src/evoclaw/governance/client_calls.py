"""Single calls from an MCP client, each a run of its own: their budget and their cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from evoclaw.core.events import Record, RunFinished
from evoclaw.core.messages import ErrorKind
from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.ports import Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.budget.policy import RunBudget


class PerCallBudget(Policy):
    """Gives each call a run budget of its own, below the shared accounts. Also a sink."""

    def __init__(self, new_budget: Callable[[str], RunBudget]) -> None:
        """`new_budget` creates the budget of a run, by its id."""
        self._new_budget = new_budget
        self._budgets: dict[str, RunBudget] = {}

    @property
    def kind(self) -> type:
        """The step kind of the budget."""
        return RunBudget

    async def judge(self, call: Call) -> Verdict:
        """Reserve what a call says it will use."""
        budget = self._budgets.get(call.run_id)
        if budget is None:
            budget = self._budgets[call.run_id] = self._new_budget(call.run_id)
        return await budget.judge(call)

    def receive(self, record: Record) -> None:
        """Settle the reservations that a record completes."""
        if (budget := self._budgets.get(record.run_id)) is not None:
            budget.receive(record)
            if isinstance(record.event, RunFinished):
                del self._budgets[record.run_id]


class CancelOnStop(AroundStep):
    """Cancels the running calls when an emergency stop is set."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[object]] = set()
        self._stopped: set[asyncio.Task[object]] = set()

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Run the call; a stop cancels the call, but not the task that awaits it."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs in a task")
        self._running.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._stopped or task.uncancel() > 0:
                raise
            text = "The call was cancelled by an emergency stop."
            execution.result = execution.call.failed(ErrorKind.CANCELLED, text)
        finally:
            self._running.discard(task)
            self._stopped.discard(task)

    def cancel_all(self) -> None:
        """Cancel all running calls; each gets a result that says it was cancelled."""
        for task in self._running:
            self._stopped.add(task)
            task.cancel()
