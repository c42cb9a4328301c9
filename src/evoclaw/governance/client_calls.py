"""Calls that come one by one from a client, each a run of its own: their budget and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from evoclaw.core.events import Record, RunFinished
from evoclaw.core.messages import ErrorKind
from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.ports import Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.budget.policy import Budget


class EachCall(Policy):
    """The budget of each call, below the accounts that all of them share. Also a sink."""

    def __init__(self, begin: Callable[[str], Budget]) -> None:
        """`begin` makes the budget of one run."""
        self._begin = begin
        self._runs: dict[str, Budget] = {}

    @property
    def kind(self) -> type:
        """It stands where the budget stands."""
        return Budget

    async def judge(self, call: Call) -> Verdict:
        """Set aside what a call says it will use."""
        budget = self._runs.get(call.run_id)
        if budget is None:
            budget = self._runs[call.run_id] = self._begin(call.run_id)
        return await budget.judge(call)

    def receive(self, record: Record) -> None:
        """Settle what a record tells of."""
        if (budget := self._runs.get(record.run_id)) is not None:
            budget.receive(record)
            if isinstance(record.event, RunFinished):
                del self._runs[record.run_id]


class CancelOnStop(AroundStep):
    """Cancels the calls under way when an emergency stop comes."""

    def __init__(self) -> None:
        self._live: set[asyncio.Task[object]] = set()
        self._stopped: set[asyncio.Task[object]] = set()

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Run the call so that it can be cancelled without the task that waits for it."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs in a task")
        self._live.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._stopped or task.uncancel() > 0:
                raise
            text = "The call was cancelled by an emergency stop."
            execution.result = execution.call.failed(ErrorKind.CANCELLED, text)
        finally:
            self._live.discard(task)
            self._stopped.discard(task)

    def end(self) -> None:
        """Cancel what runs; each call is answered as cancelled."""
        for task in self._live:
            self._stopped.add(task)
            task.cancel()
