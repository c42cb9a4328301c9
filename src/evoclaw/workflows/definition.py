"""What a workflow is: inputs, steps, an output. Written in TOML or in Python, it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from evoclaw.core.messages import JSON

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=31_536_000)]
Kind: TypeAlias = Literal["string", "integer", "number", "boolean", "object", "array", "any"]

FAIL, CONTINUE = "fail", "continue"
"""What `on_error` may say, besides the name of a later step."""


class Input(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that a workflow is started with."""

    type: Kind = "string"
    required: bool | None = None
    """Not said: unless it has a default."""
    default: JSON = None
    description: str = ""

    @property
    def is_required(self) -> bool:
        """Whether a workflow cannot start without it."""
        return self.default is None if self.required is None else self.required


class Retry(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often something that failed harmlessly is tried, and how long it is left alone before."""

    attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    """The first one included."""
    backoff_s: Annotated[float, Meta(ge=0, le=86_400)] = 1.0
    """Before the second; each further one waits `factor` times as long."""
    factor: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0

    def pause(self, attempt: int) -> float:
        """Seconds between an attempt that failed and the next one."""
        # Beyond that the longest has long been reached, and the power would overflow.
        return min(self.max_s, self.backoff_s * self.factor ** min(attempt - 1, 64))


ONCE = Retry()


class AgentStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="agent",
):  # fmt: skip
    """Ask an agent; its answer is the output."""

    kind: ClassVar[str] = "agent"

    name: str
    agent: str
    message: str = ""
    """What it is asked."""
    inputs: dict[str, JSON] = {}
    """What it is given, as an object; with a message, beneath it."""
    iterative: bool = True
    """With its tools, in the loop; false asks once, without any."""
    timeout_s: Seconds | None = None
    retry: Retry = ONCE
    on_error: str = FAIL


class ToolStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="tool",
):  # fmt: skip
    """Call a tool, judged as any other call is."""

    kind: ClassVar[str] = "tool"

    name: str
    tool: str
    arguments: dict[str, JSON] = {}
    timeout_s: Seconds | None = None
    retry: Retry = ONCE
    on_error: str = FAIL


class WaitStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="wait",
):  # fmt: skip
    """Go on later."""

    kind: ClassVar[str] = "wait"

    name: str
    seconds: Seconds | str | None = None
    """From when the step begins; a number, or a template that gives one."""
    until: str = ""
    """A time such as `2030-01-31T08:00:00+01:00`; without an offset it is UTC."""
    on_error: str = FAIL


class ApprovalStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="approval",
):  # fmt: skip
    """Ask a person; a no is a failure."""

    kind: ClassVar[str] = "approval"

    name: str
    message: str
    timeout_s: Seconds | None = None
    """After which nobody's answer is a no; without one it waits for ever."""
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
    """Run steps side by side; the output has the output of each, by its name."""

    kind: ClassVar[str] = "parallel"

    name: str
    steps: tuple[Step, ...]
    limit: Annotated[int, Meta(ge=1, le=64)] = 4
    """How many at once."""
    on_error: str = FAIL


class SequenceStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="sequence",
):  # fmt: skip
    """Run steps one after the other, as one; the output is that of the last."""

    kind: ClassVar[str] = "sequence"

    name: str
    steps: tuple[Step, ...]
    on_error: str = FAIL


class ConditionStep(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True,
    tag_field="kind", tag="condition", rename={"when": "if", "otherwise": "else"},
):  # fmt: skip
    """Run some steps or others; the output is that of the last one that ran."""

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
Leaf: TypeAlias = AgentStep | ToolStep | WorkflowStep
"""What somebody else does."""
Group: TypeAlias = ParallelStep | SequenceStep | ConditionStep
KINDS: tuple[type[Step], ...] = (
    AgentStep, ToolStep, WaitStep, ApprovalStep, WorkflowStep, ParallelStep, SequenceStep,
    ConditionStep,
)  # fmt: skip


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a workflow starts by itself."""

    cron: str = ""
    """Minute, hour, day of month, month, day of week; or `@daily` and the like."""
    every_s: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None
    timezone: str = "UTC"
    """Whose clock a cron expression is read on."""
    inputs: dict[str, JSON] = {}
    """What it is started with."""
    tenant: str = "local"
    user: str = ""
    overlap: bool = False
    """Whether it starts though the one before has not ended; else that start is left out."""
    enabled: bool = True


class Workflow(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A definition."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    inputs: dict[str, Input] = {}
    output: JSON = None
    """Templates, filled in when all steps have ended; the last step's output if not given."""
    schedule: Schedule | None = None


def below(step: Step) -> tuple[Sequence[Step], ...]:
    """The sequences of steps that a step holds."""
    if isinstance(step, ConditionStep):
        return (step.then, step.otherwise)
    if isinstance(step, SequenceStep):
        return (step.steps,)
    if isinstance(step, ParallelStep):
        return tuple((one,) for one in step.steps)
    return ()


def every(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps, those inside of others too, in the order written."""
    for step in steps:
        yield step
        for inner in below(step):
            yield from every(inner)
