"""What holds for calls that come one by one, each a run of its own: a budget, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evoclaw.core.events import Record, RunFinished
from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Executor, Policy, Progress, Verdict
from evoclaw.core.tools import Call
from evoclaw.executors.wrapped import Wrapper
from evoclaw.governance.budget.policy import Budget


class EachCall(Policy):
    """The budget of each call, below the accounts that all of them share. Also a sink."""

    def __init__(self, begin: Callable[[str], Budget]) -> None:
        """`begin` makes the budget of one run."""
        self._begin = begin
        self._runs: dict[str, Budget] = {}

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


class Endable(Wrapper):
    """Ends what is under way when it is told to: there is no one run whose deadline could."""

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self._live: set[asyncio.Task[ToolResult]] = set()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run the call as a task that can be cancelled without whoever waits for it."""
        work = asyncio.create_task(self._hand_on(call, progress), name=call.request_id)
        self._live.add(work)
        try:
            return await work
        finally:
            self._live.discard(work)

    async def _hand_on(self, call: Call, progress: Progress) -> ToolResult:
        return await self.inner.execute(call, progress)

    def end(self) -> None:
        """Cancel what runs; each is answered as cancelled."""
        for work in self._live:
            work.cancel()
