"""The views of workflows and steps that the API returns."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from evoclaw.core.messages import JSON
from evoclaw.store.workflows.workflows import StoredWorkflow
from evoclaw.workflows.definition import ApprovalStep, Step, all_steps
from evoclaw.workflows.events import StepDecision, WorkflowFinished
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


class WorkflowState(StrEnum):
    """The state of a workflow."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """Waiting for a time, a person, or another workflow."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(StrEnum):
    """The state of a step."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    """It may or may not have taken effect: a person must decide how to continue."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepView(Struct, frozen=True, omit_defaults=True):
    """A step and its progress."""

    name: str
    """The name of the step."""
    kind: str
    """The kind of the step, such as `agent` or `tool`."""
    state: StepState
    """The state of the step."""
    attempts: int = 0
    """How often it was started."""
    started_at: float | None = None
    """When it started, in Unix seconds."""
    ended_at: float | None = None
    """When it ended, in Unix seconds."""
    run_ids: tuple[str, ...] = ()
    """The runs of an agent step, the last one last."""
    workflow_id: str = ""
    """The id of the child workflow."""
    output: JSON = None
    """What it returned."""
    error: str = ""
    """Why it failed, is retried, waits, or has an unknown outcome."""
    due: float | None = None
    """When it continues by itself."""
    asked: str = ""
    """The question to a person."""
    answers: tuple[StepDecision, ...] = ()
    """The answers that a person may give now."""


class WorkflowView(Struct, frozen=True, omit_defaults=True):
    """A workflow that was started."""

    id: str
    """The id of the workflow run."""
    name: str
    """The name of the workflow."""
    state: WorkflowState
    """The state of the workflow run."""
    started_at: float
    """When it started, in Unix seconds."""
    inputs: dict[str, JSON] = {}
    """Its inputs by name."""
    output: JSON = None
    """What it returned."""
    error: str = ""
    """Why it failed."""
    steps: tuple[StepView, ...] = ()
    """In the order written, including nested ones; empty in a list of workflows."""
    ended_at: float | None = None
    """When it ended, in Unix seconds; null: it has not."""
    parent: str = ""
    """The id of the parent workflow."""
    user: str = ""
    """The user who started it."""
    scheduled_for: float | None = None
    """The time of the schedule that started it, in Unix seconds."""


def overview(row: StoredWorkflow, plan: Plan | None = None) -> WorkflowView:
    """A workflow without its steps."""
    plan = plan or decode_plan(row.plan)
    end = None
    if row.outcome is not None:
        end = msgspec.json.decode(row.outcome, type=WorkflowFinished)
    return WorkflowView(
        row.id,
        row.name,
        WorkflowState(row.state),
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


def detailed_view(row: StoredWorkflow, progress: Progress) -> WorkflowView:
    """A workflow with its steps."""
    steps = all_steps(progress.plan.workflow.steps)
    ended = progress.finished is not None
    shown = tuple(_step(step, progress.steps.get(step.name), ended) for step in steps)
    return msgspec.structs.replace(overview(row, progress.plan), steps=shown)


def allowed_answers(step: Step, current: StepProgress | None) -> tuple[StepDecision, ...]:
    """The answers that a person may give to a step now."""
    if current is None or current.answer is not None:
        return ()
    if current.state == UNKNOWN:
        return (StepDecision.RETRY, StepDecision.SKIP, StepDecision.FAIL)
    if isinstance(step, ApprovalStep) and current.state == RUNNING:
        return (StepDecision.APPROVE, StepDecision.DENY)
    return ()


def _step(step: Step, current: StepProgress | None, ended: bool) -> StepView:
    if current is None:
        state = StepState.SKIPPED if ended else StepState.PENDING
        return StepView(step.name, step.kind, state)
    return StepView(
        step.name,
        step.kind,
        _state(current, ended),
        current.attempt,
        current.first_started_at,
        current.ended_at,
        current.run_ids,
        current.workflow_id,
        current.output,
        current.error,
        None if current.ended else current.due,
        current.asked,
        () if ended else allowed_answers(step, current),
    )


def _state(current: StepProgress, ended: bool) -> StepState:
    if ended and not current.ended:
        # The workflow was cancelled: the groups around its steps never ended.
        return StepState(SKIPPED)
    if current.state in (POSTPONED, RETRYING):
        return StepState.WAITING
    waits = current.state == RUNNING and (current.asked or current.due is not None)
    return StepState.WAITING if waits else StepState(current.state)
