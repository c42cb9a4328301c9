"""The events of a workflow, one frozen class each, and the record with their number and time.

The state of a workflow is a fold over its events. Times in events are decisions, such as when to
retry; the time at which an event happened is in its record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import JSON


class StepDecision(StrEnum):
    """A person's answer to a step."""

    APPROVE = "approve"
    DENY = "deny"
    RETRY = "retry"
    """Run a step again whose outcome is unknown."""
    SKIP = "skip"
    """Treat the step as done; the workflow continues without its output."""
    FAIL = "fail"


class WorkflowStarted(Struct, frozen=True, omit_defaults=True, tag="workflow_started"):
    """A workflow was started."""

    name: str
    inputs: dict[str, JSON] = {}
    parent: str = ""
    """The id of the parent workflow."""
    scheduled_for: float | None = None
    """The scheduled time, if a schedule started it."""


class StepStarted(Struct, frozen=True, omit_defaults=True, tag="step_started"):
    """An attempt of a step started; not the first if it failed or its outcome was unknown."""

    step: str
    attempt: int = 1
    run_id: str = ""
    """The id of the agent's run."""
    workflow_id: str = ""
    """The id of the child workflow."""
    asked: str = ""
    """The question to a person."""
    due: float | None = None
    """When a wait ends, or an answer comes too late."""
    taken: str = ""
    """The branch of a condition: `then` or `else`."""


class StepPostponed(Struct, frozen=True, omit_defaults=True, tag="step_postponed"):
    """A step waits: for a person before it runs, or for a run or workflow that continues."""

    step: str
    attempt: int
    reason: str = ""
    for_person: bool = False
    """Whether a person must act: this time does not count against the timeout of the step."""


class StepResumed(Struct, frozen=True, tag="step_resumed"):
    """A postponed step is run again."""

    step: str
    attempt: int


class StepAnswered(Struct, frozen=True, omit_defaults=True, tag="step_answered"):
    """A person answered a step."""

    step: str
    decision: StepDecision
    by: str
    reason: str = ""


class StepFinished(Struct, frozen=True, omit_defaults=True, tag="step_finished"):
    """A step succeeded."""

    step: str
    attempt: int = 1
    output: JSON = None
    label: Label = CLEAN
    """The label of the values its output was made from."""


class StepFailed(Struct, frozen=True, omit_defaults=True, tag="step_failed"):
    """An attempt of a step failed."""

    step: str
    attempt: int = 1
    error: str = ""
    output: JSON = None
    again_at: float | None = None
    """When the step is retried; None if it is not."""
    label: Label = CLEAN


class StepUnknown(Struct, frozen=True, omit_defaults=True, tag="step_unknown"):
    """It is unknown whether a step took effect: a person must decide how to continue."""

    step: str
    attempt: int
    reason: str


class StepSkipped(Struct, frozen=True, omit_defaults=True, tag="step_skipped"):
    """A person decided to continue without the step."""

    step: str
    reason: str = ""


class CancelAsked(Struct, frozen=True, omit_defaults=True, tag="cancel_asked"):
    """The cancellation of the workflow was requested."""

    by: str = ""
    reason: str = ""


class WorkflowFinished(Struct, frozen=True, omit_defaults=True, tag="workflow_finished"):
    """The workflow has ended."""

    state: str
    """`succeeded`, `failed` or `cancelled`."""
    output: JSON = None
    error: str = ""


WorkflowEvent: TypeAlias = (
    WorkflowStarted | StepStarted | StepPostponed | StepResumed | StepAnswered | StepFinished
    | StepFailed | StepUnknown | StepSkipped | CancelAsked | WorkflowFinished
)  # fmt: skip


class WorkflowRecord(Struct, frozen=True):
    """An event with its workflow, number and time."""

    workflow_id: str
    seq: int
    """Counts from one."""
    at: float
    """Unix seconds."""
    event: WorkflowEvent
