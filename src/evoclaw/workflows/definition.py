"""Workflow definitions: inputs, steps and an output, written in TOML or in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.encoding import json_digest
from evoclaw.core.messages import JSON
from evoclaw.governance.approvals import WorkflowStepRef

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=31_536_000)]
InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "object", "array", "any"]

FAIL, CONTINUE = "fail", "continue"
"""The values of `on_error`, beside the name of a later step."""


class Input(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An input of a workflow."""

    type: InputType = "string"
    required: bool | None = None
    """By default, an input without a default value is required."""
    default: JSON = None
    description: str = ""

    @property
    def is_required(self) -> bool:
        """Whether the workflow cannot start without it."""
        return self.default is None if self.required is None else self.required


class Retry(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often a step that may safely be repeated is attempted, with exponential backoff."""

    attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    """Including the first."""
    backoff_s: Annotated[float, Meta(ge=0, le=86_400)] = 1.0
    """Seconds before the second attempt; each further one waits `factor` times as long."""
    factor: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0

    def delay_s(self, attempt: int) -> float:
        """Seconds between a failed attempt and the next one."""
        # After 64 attempts the maximum has long been reached, and the power would overflow.
        return min(self.max_s, self.backoff_s * self.factor ** min(attempt - 1, 64))


NO_RETRY = Retry()


class AgentStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="agent",
):  # fmt: skip
    """Run an agent; its answer is the output."""

    kind: ClassVar[str] = "agent"

    name: str
    agent: str
    message: str = ""
    """The message to the agent."""
    inputs: dict[str, JSON] = {}
    """An object for the agent; with a message, it is appended to it."""
    iterative: bool = True
    """Whether the agent runs in the loop with its tools; false requests one reply without."""
    timeout_s: Seconds | None = None
    retry: Retry = NO_RETRY
    on_error: str = FAIL


class ToolStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="tool",
):  # fmt: skip
    """Call a tool, under the same policies as any other call."""

    kind: ClassVar[str] = "tool"

    name: str
    tool: str
    arguments: dict[str, JSON] = {}
    timeout_s: Seconds | None = None
    retry: Retry = NO_RETRY
    on_error: str = FAIL


class WaitStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="wait",
):  # fmt: skip
    """Wait for a duration, or until a time."""

    kind: ClassVar[str] = "wait"

    name: str
    seconds: Seconds | str | None = None
    """Seconds from the start of the step; a number, or a template that yields one."""
    until: str = ""
    """A time such as `2030-01-31T08:00:00+01:00`; without an offset it is UTC."""
    on_error: str = FAIL


class ApprovalStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="approval",
):  # fmt: skip
    """Ask a person; the step fails if the person denies."""

    kind: ClassVar[str] = "approval"

    name: str
    message: str
    timeout_s: Seconds | None = None
    """Seconds after which the step fails without an answer; without it the step waits forever."""
    on_error: str = FAIL


class WorkflowStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="workflow",
):  # fmt: skip
    """Run another workflow; its output is the output."""

    kind: ClassVar[str] = "workflow"

    name: str
    workflow: str
    inputs: dict[str, JSON] = {}
    timeout_s: Seconds | None = None
    on_error: str = FAIL


class ParallelStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="parallel",
):  # fmt: skip
    """Run steps concurrently; the output has the output of each step by name."""

    kind: ClassVar[str] = "parallel"

    name: str
    steps: tuple[Step, ...]
    limit: Annotated[int, Meta(ge=1, le=64)] = 4
    """How many steps run at the same time."""
    on_error: str = FAIL


class SequenceStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="sequence",
):  # fmt: skip
    """Run steps one after the other as a single step; the output is that of the last."""

    kind: ClassVar[str] = "sequence"

    name: str
    steps: tuple[Step, ...]
    on_error: str = FAIL


class ConditionStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="condition", rename={"when": "if", "otherwise": "else"},
):  # fmt: skip
    """Run one of two sequences of steps; the output is that of the last step that ran."""

    kind: ClassVar[str] = "condition"

    name: str
    when: str
    """An expression; `if` in TOML."""
    then: tuple[Step, ...] = ()
    otherwise: tuple[Step, ...] = ()
    """`else` in TOML."""
    on_error: str = FAIL


Step: TypeAlias = (
    AgentStep | ToolStep | WaitStep | ApprovalStep | WorkflowStep | ParallelStep | SequenceStep
    | ConditionStep
)  # fmt: skip
LeafStep: TypeAlias = AgentStep | ToolStep | WorkflowStep
"""A step that an agent, a tool or another workflow carries out."""
GroupStep: TypeAlias = ParallelStep | SequenceStep | ConditionStep
STEP_TYPES: tuple[type[Step], ...] = (
    AgentStep, ToolStep, WaitStep, ApprovalStep, WorkflowStep, ParallelStep, SequenceStep,
    ConditionStep,
)  # fmt: skip


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a workflow starts automatically."""

    cron: str = ""
    """Minute, hour, day of month, month, day of week; or `@daily` and the like."""
    every_s: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None
    timezone: str = "UTC"
    """The time zone of the cron expression."""
    inputs: dict[str, JSON] = {}
    """The inputs of each start."""
    tenant: str = "local"
    user: str = ""
    overlap: bool = False
    """Whether to start although the previous one still runs; otherwise that start is skipped."""
    enabled: bool = True


class Workflow(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A workflow definition."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    inputs: dict[str, Input] = {}
    output: JSON = None
    """Templates, filled in when all steps have ended [the output of the last step]."""
    schedule: Schedule | None = None


def inner_sequences(step: Step) -> tuple[Sequence[Step], ...]:
    """The sequences of steps inside a step."""
    if isinstance(step, ConditionStep):
        return (step.then, step.otherwise)
    if isinstance(step, SequenceStep):
        return (step.steps,)
    if isinstance(step, ParallelStep):
        return tuple((inner,) for inner in step.steps)
    return ()


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps in the order written, including nested ones."""
    for step in steps:
        yield step
        for inner in inner_sequences(step):
            yield from all_steps(inner)


def definition_digest(workflow: Workflow) -> str:
    """The digest of a definition: equal for equal definitions, in a file or in code."""
    return json_digest(msgspec.to_builtins(workflow))


def step_ref(workflow: Workflow, step: Step) -> WorkflowStepRef:
    """A step of a definition, as approvals name it."""
    fixed = isinstance(step, ToolStep | ApprovalStep)
    return WorkflowStepRef(workflow.name, step.name, definition_digest(workflow), fixed)
