"""Drives one workflow: plan, store events, run steps, until it ends or every step waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.governance.approvals import ApprovalScope, fixed_step_scope
from evoclaw.store.workflows.workflows import (
    LeaseLost,
    StoredWorkflow,
    WorkflowStore,
    WorkflowUpdate,
)
from evoclaw.workflows.definition import (
    AgentStep,
    LeafStep,
    ToolStep,
    WorkflowStep,
    all_steps,
    step_ref,
)
from evoclaw.workflows.events import (
    StepAnswered,
    StepDecision,
    StepFailed,
    StepPostponed,
    StepResumed,
    StepStarted,
    StepUnknown,
    WorkflowEvent,
    WorkflowFinished,
    WorkflowRecord,
)
from evoclaw.workflows.planner import plan_next
from evoclaw.workflows.ports import StepOutcome, StepWaiting
from evoclaw.workflows.progress import (
    CANCELLED,
    POSTPONED,
    Progress,
    decode_plan,
    records_of,
)
from evoclaw.workflows.step_runner import StepRunner
from evoclaw.workflows.views import allowed_answers

RUNNING, WAITING = "running", "waiting"
ApprovedBy: TypeAlias = Callable[[ApprovalScope], Awaitable[str]]
"""Who approved the step of a scope from now on; empty without an approval."""


async def not_approved(_: ApprovalScope) -> str:
    """No step is approved from now on."""
    return ""


class WorkflowDriver:
    """Drives a workflow that this process has claimed."""

    def __init__(
        self,
        row: StoredWorkflow,
        store: WorkflowStore,
        owner: str,
        runner: StepRunner,
        *,
        clock: Callable[[], float],
        approved_by: ApprovedBy = not_approved,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """Choose the parts.

        Args:
            row: The workflow, as it was when it was claimed.
            store: The store of its tenant.
            owner: The id of the process that claimed it.
            runner: Runs its steps.
            clock: Returns Unix seconds.
            approved_by: Who approved a step from now on.
            notify: Called whenever events were stored.
        """
        self._store, self._owner, self._runner = store, owner, runner
        self._clock, self._notify, self._approved_by = clock, notify, approved_by
        self._progress = Progress(row.id, decode_plan(row.plan))
        self._wakes = row.wakes
        self._started: set[tuple[str, int]] = set()
        """Attempts that this process started or resumed."""
        self._poll_at: dict[str, float] = {}
        """The waiting steps, and when to run each again."""
        self._woken = row.due == 0
        """Whether a run or call of a waiting step may have continued."""
        self._continued: set[str] = set()
        """The steps to resume if they wait, because the workflow was woken."""
        self._tasks: dict[str, asyncio.Task[StepOutcome]] = {}
        self._changed = asyncio.Event()
        self._stale = False

    @property
    def version(self) -> tuple[int, int]:
        """The number of the last event and the wake count, as known to this driver."""
        return self._progress.head, self._wakes

    def notify_changed(self) -> None:
        """Notify the driver that the workflow was changed from outside."""
        self._stale = True
        self._changed.set()

    async def drive(self) -> None:
        """Drive until the workflow ends, waits, or is claimed by another process.

        No task of it runs here afterwards.
        """
        try:
            await self._catch_up()
            while self._progress.finished is None and not await self._advance():
                pass
        except LeaseLost:
            return
        finally:
            await self._cancel_tasks()

    async def _advance(self) -> bool:
        """Run one round; True if every step waits and the workflow was released."""
        self._changed.clear()
        if self._stale:
            await self._catch_up()
        await self._collect()
        if self._progress.finished is not None:
            return False
        if self._progress.cancelling is not None:
            await self._cancel()
            return False
        moves = plan_next(self._progress, self._clock())
        if moves.events:
            await self._append(moves.events)
            return False
        if approved := await self._approved_steps():
            await self._append(approved)
            return False
        again = [event for step in moves.to_run if (event := self._start_step(step)) is not None]
        if again:
            await self._append(again)
            return False
        moves.wait_until(min(self._poll_at.values(), default=None))
        if not self._tasks:
            return await self._park(moves.due)
        await self._wait(moves.due)
        return False

    async def _approved_steps(self) -> Sequence[WorkflowEvent]:
        """The answers of a person who approved a step of the definition from now on."""
        workflow, tenant = self._progress.plan.workflow, self._progress.plan.who.tenant
        answers: list[WorkflowEvent] = []
        for step in all_steps(workflow.steps):
            current = self._progress.steps.get(step.name)
            if StepDecision.APPROVE not in allowed_answers(step, current):
                continue
            by = await self._approved_by(fixed_step_scope(tenant, step_ref(workflow, step)))
            if by:
                reason = "approved for all runs of this definition"
                answers.append(StepAnswered(step.name, StepDecision.APPROVE, by, reason))
        return answers

    def _start_step(self, step: LeafStep) -> WorkflowEvent | None:
        """Run a step unless it is running or waiting; an event if one must be stored first."""
        current = self._progress.steps[step.name]
        if step.name in self._tasks or self._clock() < self._poll_at.get(step.name, 0):
            return None
        started = (step.name, current.attempt) in self._started
        if current.state == POSTPONED and (
            isinstance(step, ToolStep) or step.name in self._continued
        ):
            # Stored first: after a crash from here on, it is unknown whether the tool ran.
            return StepResumed(step.name, current.attempt)
        self._poll_at.pop(step.name, None)
        work = self._runner.run(step, self._progress, resumed=not started)
        task = self._tasks[step.name] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changed.set())
        return None

    async def _wait(self, due: float | None) -> None:
        seconds = None if due is None else max(0.0, due - self._clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _park(self, due: float | None) -> bool:
        """Release the workflow until it is due; False if it changed meanwhile."""
        kept = WorkflowUpdate(WAITING)
        if await self._store.release(
            self._progress.workflow_id, self._owner, self.version, kept, due
        ):
            self._notify()
            return True
        await self._catch_up()
        return False

    async def _collect(self) -> None:
        """Store the outcomes of the finished steps."""
        for name in [name for name, task in self._tasks.items() if task.done()]:
            outcome = self._outcome(name, self._tasks.pop(name))
            current = self._progress.steps[name]
            if not isinstance(outcome, StepWaiting):
                events: Sequence[WorkflowEvent] = (outcome,)
            else:
                again = self._clock() if name in self._continued else self._next_poll(name, outcome)
                self._poll_at[name] = again
                postponed = StepPostponed(name, current.attempt, outcome.reason, outcome.for_person)
                events = () if current.state == POSTPONED else (postponed,)
            while events and not await self._append(events):
                pass

    def _next_poll(self, name: str, waiting: StepWaiting) -> float:
        again = self._clock() + waiting.retry_after_s
        step = next(step for step in self._leaves() if step.name == name)
        due = self._progress.steps[name].times_out_at(step.timeout_s)
        if due is None or waiting.for_person or isinstance(step, WorkflowStep):
            return again
        return min(again, due)

    def _outcome(self, name: str, task: asyncio.Task[StepOutcome]) -> StepOutcome:
        attempt = self._progress.steps[name].attempt
        if task.cancelled():
            reason = "the step was cancelled while it ran; it may or may not have taken effect"
            return StepUnknown(name, attempt, reason)
        problem = task.exception()
        if problem is None:
            return task.result()
        if isinstance(problem, EvoClawError):
            return StepFailed(name, attempt, str(problem))
        # A bug of EvoClaw or of a port: the step may have taken effect.
        return StepUnknown(name, attempt, f"internal error: {type(problem).__name__}: {problem}")

    async def _cancel(self) -> None:
        """Cancel the running steps, and end the workflow."""
        await self._cancel_tasks()
        request = self._progress.cancelling
        reason = (request.reason if request else "") or "cancelled"
        events: list[WorkflowEvent] = []
        for step in self._leaves():
            current = self._progress.steps.get(step.name)
            if current is not None and not current.ended:
                await self._runner.cancel(step, self._progress, reason)
                events.append(StepFailed(step.name, current.attempt, "cancelled before it ended"))
        events.append(WorkflowFinished(CANCELLED, error=reason))
        await self._append(events)

    def _leaves(self) -> Sequence[LeafStep]:
        steps = all_steps(self._progress.plan.workflow.steps)
        return [step for step in steps if isinstance(step, AgentStep | ToolStep | WorkflowStep)]

    async def _cancel_tasks(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _append(self, events: Sequence[WorkflowEvent]) -> bool:
        """Store events; False if other events came first, which are applied now."""
        last = events[-1]
        outcome = msgspec.json.encode(last) if isinstance(last, WorkflowFinished) else None
        kept = WorkflowUpdate(
            last.state if isinstance(last, WorkflowFinished) else RUNNING, outcome
        )
        blobs = [msgspec.json.encode(event) for event in events]
        head, id_ = self._progress.head, self._progress.workflow_id
        at = await self._store.append(id_, self._owner, head, blobs, kept)
        if at is None:
            await self._catch_up()
            return False
        numbered = enumerate(events, head + 1)
        self._progress.apply(WorkflowRecord(id_, seq, at, event) for seq, event in numbered)
        for event in events:
            if isinstance(event, StepStarted | StepResumed):
                self._started.add((event.step, event.attempt))
                self._continued.discard(event.step)
        self._notify()
        return True

    async def _catch_up(self) -> None:
        """Apply events from outside; every waiting step is run again."""
        self._stale = False
        self._poll_at.clear()
        id_ = self._progress.workflow_id
        row = await self._store.get(id_)
        if row is None:
            raise LeaseLost(f"workflow {id_!r} was deleted")
        woken, self._wakes = self._woken or row.wakes != self._wakes, row.wakes
        self._progress.apply(records_of(id_, await self._store.events(id_, self._progress.head)))
        if woken:
            steps = self._progress.steps.items()
            # A running step may just have found that it waits: it is run once more.
            waiting = {name for name, step in steps if step.state == POSTPONED}
            self._continued = waiting.union(self._tasks)
            self._woken = False
