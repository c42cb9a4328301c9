"""Child workflows: a workflow step starts another workflow once, and polls until it has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from evoclaw.core.labels import Label, join_labels
from evoclaw.core.messages import JSON
from evoclaw.store.workflows.workflows import NewWorkflow, StoredWorkflow, WorkflowStore
from evoclaw.workflows.catalogue import MAX_WORKFLOW_DEPTH, Catalogue
from evoclaw.workflows.definition import Workflow, WorkflowStep
from evoclaw.workflows.errors import BadInputs, UnknownWorkflow
from evoclaw.workflows.events import (
    CancelAsked,
    StepFailed,
    StepFinished,
    StepStarted,
    WorkflowStarted,
)
from evoclaw.workflows.ports import StepOutcome, StepWaiting
from evoclaw.workflows.progress import (
    SUCCEEDED,
    Plan,
    Progress,
    decode_plan,
    person_intervals,
    progress_of,
    records_of,
)
from evoclaw.workflows.validation import input_problem, with_defaults


class PersonTime(Struct, frozen=True):
    """How long a workflow waited for people, and whether it does now."""

    seconds: float
    is_paused: bool


class ChildWorkflows:
    """Starts child workflows, and checks whether they have ended."""

    def __init__(
        self, store: WorkflowStore, catalogue: Catalogue, notify: Callable[[str, str], None]
    ) -> None:
        """Choose the parts; `notify` gets the tenant and id of a workflow that has work to do."""
        self._store, self._catalogue, self._notify = store, catalogue, notify

    async def start_or_poll(
        self, progress: Progress, step: WorkflowStep, inputs: dict[str, JSON], label: Label
    ) -> StepOutcome:
        """Start the child workflow if needed; its outcome, or that the step waits for it."""
        current, tenant = progress.steps[step.name], progress.plan.who.tenant
        store = self._store.of(tenant)
        row = await store.get(current.workflow_id)
        if row is None:
            new = self._new(progress, step, inputs, label)
            row, _ = await store.create(new)
            self._notify(tenant, row.id)
        if row.ended_at is None:
            return StepWaiting(f"workflow {row.id} is still running")
        return await self._outcome(store, row, step, current.attempt)

    async def person_time(self, tenant: str, workflow_id: str, now: float) -> PersonTime:
        """How long a child workflow, or a workflow within it, waited for people."""
        store, ids = self._store.of(tenant), [workflow_id]
        intervals: list[tuple[float, float]] = []
        while ids:
            id_ = ids.pop()
            records = records_of(id_, await store.events(id_))
            intervals += person_intervals(records, now)
            started = [record.event for record in records if isinstance(record.event, StepStarted)]
            ids += [event.workflow_id for event in started if event.workflow_id]
        return PersonTime(_union_s(intervals), any(end == now for _, end in intervals))

    async def cancel(self, tenant: str, workflow_id: str, reason: str) -> None:
        """Cancel a child workflow."""
        if await request_cancel(self._store.of(tenant), workflow_id, CancelAsked(reason=reason)):
            self._notify(tenant, workflow_id)

    def _new(
        self, progress: Progress, step: WorkflowStep, inputs: dict[str, JSON], label: Label
    ) -> NewWorkflow:
        ancestors = (*progress.plan.ancestors, progress.plan.workflow.name)
        workflow = self._catalogue.get(step.workflow)
        if workflow is None:
            raise UnknownWorkflow(step.workflow, self._catalogue.names())
        # Files may have changed since the outermost workflow started, so check again.
        if step.workflow in ancestors or len(ancestors) >= MAX_WORKFLOW_DEPTH:
            raise BadInputs(
                step.workflow,
                f"not started within {' > '.join(ancestors)}: a workflow may not contain itself, "
                f"nor be nested more than {MAX_WORKFLOW_DEPTH} deep",
            )
        if problem := input_problem(workflow, inputs):
            raise BadInputs(step.workflow, problem)
        plan = Plan(
            workflow,
            progress.plan.who,
            with_defaults(workflow, inputs),
            label,
            ancestors,
            progress.workflow_id,
        )
        return new_workflow(progress.steps[step.name].workflow_id, workflow, plan)

    async def _outcome(
        self, store: WorkflowStore, row: StoredWorkflow, step: WorkflowStep, attempt: int
    ) -> StepOutcome:
        plan = decode_plan(row.plan)
        child = progress_of(row.id, plan, records_of(row.id, await store.events(row.id)))
        end = child.finished
        label = join_labels((plan.label, *(state.label for state in child.steps.values())))
        if end is not None and end.state == SUCCEEDED:
            return StepFinished(step.name, attempt, end.output, label)
        error = f"workflow {row.id} {row.state}: {end.error if end else ''}".rstrip(": ")
        return StepFailed(step.name, attempt, error, label=label)


def _union_s(intervals: Iterable[tuple[float, float]]) -> float:
    """The seconds that at least one of the intervals covers."""
    total, covered = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return total


def new_workflow(
    workflow_id: str, workflow: Workflow, plan: Plan, *, key: str | None = None, digest: str = ""
) -> NewWorkflow:
    """A workflow to start, as it is stored."""
    started = WorkflowStarted(workflow.name, plan.inputs, plan.parent, plan.scheduled_for)
    return NewWorkflow(
        workflow_id,
        workflow.name,
        digest,
        msgspec.json.encode(plan),
        msgspec.json.encode(started),
        plan.parent,
        key,
    )


async def request_cancel(store: WorkflowStore, workflow_id: str, asked: CancelAsked) -> bool:
    """Request the cancellation of a workflow; False if it does not exist or has ended."""
    while True:
        row = await store.get(workflow_id)
        if row is None or row.ended_at is not None:
            return False
        if await store.add_event(workflow_id, row.head, msgspec.json.encode(asked)):
            return True
