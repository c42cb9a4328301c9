"""The facts of a workflow, one frozen class each, and the record that stamps them.

How a workflow stands is a fold over them. Times in events are decisions, such as when to go on;
when something happened is on the record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import JSON


class Decision(StrEnum):
    """What a person may say to a step."""

    APPROVE = "approve"
    DENY = "deny"
    RETRY = "retry"
    """What may have happened, or not, is to be done once more."""
    SKIP = "skip"
    """It is to be taken for done; the workflow goes on without its output."""
    FAIL = "fail"


class WorkflowStarted(Struct, frozen=True, omit_defaults=True, tag="workflow_started"):
    """A workflow was started."""

    name: str
    inputs: dict[str, JSON] = {}
    parent: str = ""
    """The workflow that has it as a step."""
    scheduled_for: float | None = None
    """The time it started by itself for."""


class StepStarted(Struct, frozen=True, omit_defaults=True, tag="step_started"):
    """A step begins; for a second time if it failed, or its outcome was not known."""

    step: str
    attempt: int = 1
    run_id: str = ""
    """Of the agent's run."""
    workflow_id: str = ""
    """Of the workflow that is a step of this one."""
    asked: str = ""
    """What a person is asked."""
    due: float | None = None
    """When a wait is over, or an answer too late."""
    taken: str = ""
    """The branch of a condition: `then` or `else`."""


class StepPostponed(Struct, frozen=True, omit_defaults=True, tag="step_postponed"):
    """What the step asked for waits for somebody: nothing was done yet, or it goes on elsewhere."""

    step: str
    attempt: int
    reason: str = ""


class StepResumed(Struct, frozen=True, tag="step_resumed"):
    """What was postponed is asked for again."""

    step: str
    attempt: int


class StepAnswered(Struct, frozen=True, omit_defaults=True, tag="step_answered"):
    """A person said something to a step."""

    step: str
    decision: Decision
    by: str
    reason: str = ""


class StepFinished(Struct, frozen=True, omit_defaults=True, tag="step_finished"):
    """A step has done what it is for."""

    step: str
    attempt: int = 1
    output: JSON = None
    label: Label = CLEAN
    """Of what its output was made from."""


class StepFailed(Struct, frozen=True, omit_defaults=True, tag="step_failed"):
    """A step has not."""

    step: str
    attempt: int = 1
    error: str = ""
    output: JSON = None
    again_at: float | None = None
    """When it is tried again; None if it is not."""
    label: Label = CLEAN


class StepUnknown(Struct, frozen=True, omit_defaults=True, tag="step_unknown"):
    """Nobody knows whether a step was done: a person must say how to go on."""

    step: str
    attempt: int
    reason: str


class StepSkipped(Struct, frozen=True, omit_defaults=True, tag="step_skipped"):
    """A person said to go on without it."""

    step: str
    reason: str = ""


class CancelAsked(Struct, frozen=True, omit_defaults=True, tag="cancel_asked"):
    """The workflow is to end."""

    by: str = ""
    reason: str = ""


class WorkflowFinished(Struct, frozen=True, omit_defaults=True, tag="workflow_finished"):
    """The workflow has ended."""

    state: str
    """`succeeded`, `failed` or `cancelled`."""
    output: JSON = None
    error: str = ""


Event: TypeAlias = (
    WorkflowStarted | StepStarted | StepPostponed | StepResumed | StepAnswered | StepFinished
    | StepFailed | StepUnknown | StepSkipped | CancelAsked | WorkflowFinished
)  # fmt: skip


class WorkflowRecord(Struct, frozen=True):
    """A fact, and when it happened in which workflow."""

    workflow_id: str
    seq: int
    """Counts from one."""
    at: float
    """Seconds since 1970."""
    event: Event
