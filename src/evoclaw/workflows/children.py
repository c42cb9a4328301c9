"""Workflows that are steps of others: each a workflow of its own, started once, awaited by none."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evoclaw.core.labels import Label, joined
from evoclaw.core.messages import JSON
from evoclaw.store.workflows.workflows import NewWorkflow, StoredWorkflow, WorkflowStore
from evoclaw.workflows.catalogue import MAX_DEPTH, Catalogue
from evoclaw.workflows.checking import with_defaults, wrong_inputs
from evoclaw.workflows.definition import Workflow, WorkflowStep
from evoclaw.workflows.driving import records_of
from evoclaw.workflows.errors import BadInputs, NoWorkflow
from evoclaw.workflows.events import CancelAsked, StepFailed, StepFinished, WorkflowStarted
from evoclaw.workflows.performing import Came
from evoclaw.workflows.ports import Waiting
from evoclaw.workflows.progress import SUCCEEDED, Plan, Progress, decode_plan, progress_of


class ChildWorkflows:
    """Starts them, and looks whether they have ended."""

    def __init__(
        self, store: WorkflowStore, catalogue: Catalogue, tell: Callable[[str, str], None]
    ) -> None:
        """Choose the parts; `tell` hears the tenant and the id of one that has something to do."""
        self._store, self._catalogue, self._tell = store, catalogue, tell

    async def look_after(
        self, progress: Progress, step: WorkflowStep, inputs: dict[str, JSON], label: Label
    ) -> Came:
        """Start one if it is not there yet, and see whether it has ended."""
        there, tenant = progress.steps[step.name], progress.plan.who.tenant
        store = self._store.of(tenant)
        row = await store.get(there.workflow_id)
        if row is None:
            new = self._new(progress, step, inputs, label)
            row, _ = await store.begin(new)
            self._tell(tenant, row.id)
        if row.ended_at is None:
            return Waiting(f"workflow {row.id} goes on")
        return await self._came(store, row, step, there.attempt)

    async def stop(self, tenant: str, workflow_id: str, reason: str) -> None:
        """Have one cancelled."""
        if await cancel(self._store.of(tenant), workflow_id, CancelAsked(reason=reason)):
            self._tell(tenant, workflow_id)

    def _new(
        self, progress: Progress, step: WorkflowStep, inputs: dict[str, JSON], label: Label
    ) -> NewWorkflow:
        ancestors = (*progress.plan.ancestors, progress.plan.workflow.name)
        workflow = self._catalogue.get(step.workflow)
        if workflow is None:
            raise NoWorkflow(step.workflow, self._catalogue.names())
        # Files may have changed since the outermost began: what was checked then may not hold.
        if step.workflow in ancestors or len(ancestors) >= MAX_DEPTH:
            raise BadInputs(step.workflow, f"{' > '.join(ancestors)} is deep enough; it ends here")
        if problem := wrong_inputs(workflow, inputs):
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

    async def _came(
        self, store: WorkflowStore, row: StoredWorkflow, step: WorkflowStep, attempt: int
    ) -> Came:
        plan = decode_plan(row.plan)
        child = progress_of(row.id, plan, records_of(row.id, await store.events(row.id)))
        end = child.finished
        label = joined((plan.label, *(one.label for one in child.steps.values())))
        if end is not None and end.state == SUCCEEDED:
            return StepFinished(step.name, attempt, end.output, label)
        error = f"workflow {row.id} {row.state}: {end.error if end else ''}".rstrip(": ")
        return StepFailed(step.name, attempt, error, label=label)


def new_workflow(
    workflow_id: str, workflow: Workflow, plan: Plan, *, key: str | None = None, digest: str = ""
) -> NewWorkflow:
    """One that is to be started, as it is kept."""
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


async def cancel(store: WorkflowStore, workflow_id: str, asked: CancelAsked) -> bool:
    """Ask for an end; False if there is nothing to end."""
    while True:
        row = await store.get(workflow_id)
        if row is None or row.ended_at is not None:
            return False
        if await store.add(workflow_id, row.head, msgspec.json.encode(asked)):
            return True
