"""How a workflow is shown to people and machines."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from evoclaw.core.messages import JSON
from evoclaw.store.workflows.workflows import StoredWorkflow
from evoclaw.workflows.definition import ApprovalStep, Step, every
from evoclaw.workflows.events import Decision, WorkflowFinished
from evoclaw.workflows.progress import (
    POSTPONED,
    RETRYING,
    RUNNING,
    SKIPPED,
    UNKNOWN,
    Plan,
    Progress,
    StepProgress,
    decode_plan,
)


class State(StrEnum):
    """How a workflow stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """For a time, a person, or another workflow."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(StrEnum):
    """How a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    """It may have been done, or not: a person must say how to go on."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepView(Struct, frozen=True, omit_defaults=True):
    """A step, as far as it is."""

    name: str
    kind: str
    state: StepState
    attempts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    run_ids: tuple[str, ...] = ()
    """The runs of an agent step, the last one last."""
    workflow_id: str = ""
    """Of the workflow that is this step."""
    output: JSON = None
    error: str = ""
    """Why it failed, is tried again, waits, or is not known."""
    due: float | None = None
    """When it goes on by itself."""
    asked: str = ""
    """What a person is asked."""
    answers: tuple[Decision, ...] = ()
    """What a person may say now."""


class WorkflowView(Struct, frozen=True, omit_defaults=True):
    """A workflow that was started."""

    id: str
    name: str
    state: State
    started_at: float
    inputs: dict[str, JSON] = {}
    output: JSON = None
    error: str = ""
    steps: tuple[StepView, ...] = ()
    """In the order written, those inside of others too; none in a list of workflows."""
    ended_at: float | None = None
    parent: str = ""
    """The workflow that has it as a step."""
    user: str = ""
    scheduled_for: float | None = None


def overview(row: StoredWorkflow, plan: Plan | None = None) -> WorkflowView:
    """A workflow without its steps."""
    plan = plan or decode_plan(row.plan)
    end = None
    if row.outcome is not None:
        end = msgspec.json.decode(row.outcome, type=WorkflowFinished)
    return WorkflowView(
        row.id,
        row.name,
        State(row.state),
        row.started_at,
        plan.inputs,
        None if end is None else end.output,
        "" if end is None else end.error,
        (),
        row.ended_at,
        row.parent,
        plan.who.user,
        plan.scheduled_for,
    )


def whole_view(row: StoredWorkflow, progress: Progress) -> WorkflowView:
    """A workflow with its steps."""
    steps = every(progress.plan.workflow.steps)
    ended = progress.finished is not None
    shown = tuple(_step(step, progress.steps.get(step.name), ended) for step in steps)
    return msgspec.structs.replace(overview(row, progress.plan), steps=shown)


def answers_to(step: Step, there: StepProgress | None) -> tuple[Decision, ...]:
    """What a person may say to a step now."""
    if there is None or there.answer is not None:
        return ()
    if there.state == UNKNOWN:
        return (Decision.RETRY, Decision.SKIP, Decision.FAIL)
    if isinstance(step, ApprovalStep) and there.state == RUNNING:
        return (Decision.APPROVE, Decision.DENY)
    return ()


def _step(step: Step, there: StepProgress | None, ended: bool) -> StepView:
    if there is None:
        state = StepState.SKIPPED if ended else StepState.PENDING
        return StepView(step.name, step.kind, state)
    return StepView(
        step.name,
        step.kind,
        _state(there, ended),
        there.attempt,
        there.began_at,
        there.ended_at,
        there.run_ids,
        there.workflow_id,
        there.output,
        there.error,
        None if there.ended else there.due,
        there.asked,
        () if ended else answers_to(step, there),
    )


def _state(there: StepProgress, ended: bool) -> StepState:
    if ended and not there.ended:
        # Of a workflow that was cancelled: what it was inside of never ended.
        return StepState(SKIPPED)
    if there.state in (POSTPONED, RETRYING):
        return StepState.WAITING
    waits = there.state == RUNNING and (there.asked or there.due is not None)
    return StepState.WAITING if waits else StepState(there.state)
