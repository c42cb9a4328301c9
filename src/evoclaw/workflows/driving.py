"""Drives one workflow: plan, store events, run steps, until it ends or every step waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.store.workflows.workflows import (
    Kept,
    LostHold,
    StoredEvent,
    StoredWorkflow,
    WorkflowStore,
)
from evoclaw.workflows.definition import AgentStep, Leaf, ToolStep, WorkflowStep, every
from evoclaw.workflows.events import (
    Event,
    StepFailed,
    StepPostponed,
    StepResumed,
    StepStarted,
    StepUnknown,
    WorkflowFinished,
    WorkflowRecord,
)
from evoclaw.workflows.performing import Came, Performer
from evoclaw.workflows.planning import plan
from evoclaw.workflows.ports import Waiting
from evoclaw.workflows.progress import (
    CANCELLED,
    POSTPONED,
    Progress,
    decode_event,
    decode_plan,
)

RUNNING, WAITING = "running", "waiting"


class Driver:
    """Drives a workflow that this process has claimed."""

    def __init__(
        self,
        row: StoredWorkflow,
        store: WorkflowStore,
        holder: str,
        performer: Performer,
        *,
        clock: Callable[[], float],
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """Choose the parts.

        Args:
            row: The workflow, as it was when it was claimed.
            store: The store of its tenant.
            owner: The id of the process that claimed it.
            runner: Runs its steps.
            clock: Returns Unix seconds.
            notify: Called whenever events were stored.
        """
        self._store, self._holder, self._performer = store, holder, performer
        self._clock, self._tell = clock, tell
        self._progress = Progress(row.id, decode_plan(row.plan))
        self._wakes = row.wakes
        self._begun: set[tuple[str, int]] = set()
        """Attempts that this process started or resumed."""
        self._asleep: dict[str, float] = {}
        """The waiting steps, and when to run each again."""
        self._tasks: dict[str, asyncio.Task[Came]] = {}
        self._news = asyncio.Event()
        self._stale = False

    @property
    def seen(self) -> tuple[int, int]:
        """The number of the last event and the wake count, as known to this driver."""
        return self._progress.head, self._wakes

    def poke(self) -> None:
        """Notify the driver that the workflow was changed from outside."""
        self._stale = True
        self._news.set()

    async def drive(self) -> None:
        """Drive until the workflow ends, waits, or is claimed by another process.

        No task of it runs here afterwards.
        """
        try:
            await self._catch_up()
            while self._progress.finished is None and not await self._go_on():
                pass
        except LostHold:
            return
        finally:
            await self._drop_tasks()

    async def _go_on(self) -> bool:
        """Run one round; True if every step waits and the workflow was released."""
        self._news.clear()
        if self._stale:
            await self._catch_up()
        await self._collect()
        if self._progress.finished is not None:
            return False
        if self._progress.cancelling is not None:
            await self._cancel()
            return False
        moves = plan(self._progress, self._clock())
        if moves.facts:
            await self._keep(moves.facts)
            return False
        again = [event for step in moves.asks if (event := self._ask(step)) is not None]
        if again:
            await self._keep(again)
            return False
        moves.wait(min(self._asleep.values(), default=None))
        if not self._tasks:
            return await self._park(moves.due)
        await self._pause(moves.due)
        return False

    def _ask(self, step: Leaf) -> Event | None:
        """Run a step unless it is running or waiting; an event if one must be stored first."""
        current = self._progress.steps[step.name]
        if step.name in self._tasks or self._clock() < self._asleep.get(step.name, 0):
            return None
        started = (step.name, current.attempt) in self._begun
        if isinstance(step, ToolStep) and current.state == POSTPONED:
            # Stored first: after a crash from here on, it is unknown whether the tool ran.
            return StepResumed(step.name, current.attempt)
        self._asleep.pop(step.name, None)
        work = self._performer.perform(step, self._progress, resumed=not started)
        task = self._tasks[step.name] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._news.set())
        return None

    async def _pause(self, due: float | None) -> None:
        seconds = None if due is None else max(0.0, due - self._clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _park(self, due: float | None) -> bool:
        """Release the workflow until it is due; False if it changed meanwhile."""
        kept = Kept(WAITING)
        if await self._store.release(
            self._progress.workflow_id, self._holder, self.seen, kept, due
        ):
            self._tell()
            return True
        await self._catch_up()
        return False

    async def _collect(self) -> None:
        """Store the outcomes of the finished steps."""
        for name in [name for name, task in self._tasks.items() if task.done()]:
            outcome = self._came(name, self._tasks.pop(name))
            current = self._progress.steps[name]
            if not isinstance(outcome, Waiting):
                events: Sequence[Event] = (outcome,)
            else:
                self._asleep[name] = self._wake_up(name, outcome)
                postponed = StepPostponed(name, current.attempt, outcome.reason)
                events = () if current.state == POSTPONED else (postponed,)
            while events and not await self._keep(events):
                pass

    def _wake_up(self, name: str, waiting: Waiting) -> float:
        again = self._clock() + waiting.again_s
        step = next(step for step in self._leaves() if step.name == name)
        if step.timeout_s is None:
            return again
        return min(again, self._progress.steps[name].started_at + step.timeout_s)

    def _came(self, name: str, task: asyncio.Task[Came]) -> Came:
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
        await self._drop_tasks()
        request = self._progress.cancelling
        reason = (request.reason if request else "") or "cancelled"
        events: list[Event] = []
        for step in self._leaves():
            current = self._progress.steps.get(step.name)
            if current is not None and not current.ended:
                await self._performer.cancel(step, self._progress, reason)
                events.append(StepFailed(step.name, current.attempt, "cancelled before it ended"))
        events.append(WorkflowFinished(CANCELLED, error=reason))
        await self._keep(events)

    def _leaves(self) -> Sequence[Leaf]:
        steps = every(self._progress.plan.workflow.steps)
        return [step for step in steps if isinstance(step, AgentStep | ToolStep | WorkflowStep)]

    async def _drop_tasks(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, events: Sequence[Event]) -> bool:
        """Store events; False if other events came first, which are applied now."""
        last = events[-1]
        outcome = msgspec.json.encode(last) if isinstance(last, WorkflowFinished) else None
        kept = Kept(last.state if isinstance(last, WorkflowFinished) else RUNNING, outcome)
        blobs = [msgspec.json.encode(event) for event in events]
        head, id_ = self._progress.head, self._progress.workflow_id
        at = await self._store.append(id_, self._holder, head, blobs, kept)
        if at is None:
            await self._catch_up()
            return False
        numbered = enumerate(events, head + 1)
        self._progress.take(WorkflowRecord(id_, seq, at, event) for seq, event in numbered)
        for event in events:
            if isinstance(event, StepStarted | StepResumed):
                self._begun.add((event.step, event.attempt))
        self._tell()
        return True

    async def _catch_up(self) -> None:
        """Apply events from outside; every waiting step is run again."""
        self._stale = False
        self._asleep.clear()
        id_ = self._progress.workflow_id
        row = await self._store.get(id_)
        if row is None:
            raise LostHold(f"workflow {id_!r} was deleted")
        self._wakes = row.wakes
        self._progress.take(records_of(id_, await self._store.events(id_, self._progress.head)))


def records_of(workflow_id: str, events: Sequence[StoredEvent]) -> list[WorkflowRecord]:
    """Stored events as records."""
    return [
        WorkflowRecord(workflow_id, stored.seq, stored.at, decode_event(stored.event))
        for stored in events
    ]
