"""The progress of a workflow: a fold over its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label, Principal, join_labels
from evoclaw.core.messages import JSON
from evoclaw.store.workflows.workflows import StoredEvent
from evoclaw.workflows.definition import Workflow, all_steps
from evoclaw.workflows.events import (
    CancelAsked,
    StepAnswered,
    StepFailed,
    StepFinished,
    StepPostponed,
    StepResumed,
    StepSkipped,
    StepStarted,
    StepUnknown,
    WorkflowEvent,
    WorkflowFinished,
    WorkflowRecord,
    WorkflowStarted,
)
from evoclaw.workflows.expressions import Reference

RUNNING, POSTPONED, RETRYING, UNKNOWN = "running", "postponed", "retrying", "unknown"
SUCCEEDED, FAILED, SKIPPED, CANCELLED = "succeeded", "failed", "skipped", "cancelled"
ENDED_STATES = (SUCCEEDED, FAILED, SKIPPED)


class Plan(Struct, frozen=True, omit_defaults=True):
    """What a workflow was started with, including its definition at that time."""

    workflow: Workflow
    who: Principal
    inputs: dict[str, JSON] = {}
    label: Label = CLEAN
    """The label of the inputs, if a parent workflow gave them."""
    ancestors: tuple[str, ...] = ()
    """The names of the parent workflows, the outermost first."""
    parent: str = ""
    scheduled_for: float | None = None


def decode_plan(blob: bytes) -> Plan:
    """Decode a stored plan."""
    return msgspec.json.decode(blob, type=Plan)


def decode_event(blob: bytes) -> WorkflowEvent:
    """Decode a stored event."""
    return msgspec.json.decode(blob, type=WorkflowEvent)


@dataclass(slots=True)
class StepProgress:
    """The progress of a step."""

    state: str = RUNNING
    attempt: int = 0
    first_started_at: float = 0.0
    """When the first attempt started."""
    started_at: float = 0.0
    """When the last attempt started."""
    ended_at: float | None = None
    run_ids: tuple[str, ...] = ()
    workflow_id: str = ""
    asked: str = ""
    due: float | None = None
    """When a wait ends, an answer comes too late, or a failed step is retried."""
    taken: str = ""
    output: JSON = None
    error: str = ""
    label: Label = CLEAN
    answer: StepAnswered | None = None
    paused_at: float | None = None
    """Since when the attempt waits for a person."""
    paused_s: float = 0.0
    """How long the attempt waited for people before."""

    @property
    def ended(self) -> bool:
        """Whether the step has ended."""
        return self.state in ENDED_STATES

    def resume(self, at: float) -> None:
        """The attempt continues; the time that a person took does not count."""
        if self.paused_at is not None:
            self.paused_s += at - self.paused_at
        self.state, self.error, self.paused_at = RUNNING, "", None

    def times_out_at(self, timeout_s: float | None) -> float | None:
        """When the attempt takes longer than its timeout; None while it waits for a person."""
        if timeout_s is None or self.paused_at is not None:
            return None
        return self.started_at + self.paused_s + timeout_s


@dataclass(slots=True)
class Progress:
    """The progress of a workflow."""

    workflow_id: str
    plan: Plan
    head: int = 0
    """The number of the last record."""
    started_at: float = 0.0
    steps: dict[str, StepProgress] = field(default_factory=dict[str, StepProgress])
    cancelling: CancelAsked | None = None
    finished: WorkflowFinished | None = None
    ended_at: float | None = None

    def apply(self, records: Iterable[WorkflowRecord]) -> None:
        """Apply the next records."""
        for record in records:
            self._apply(record.event, record.at)
            self.head = record.seq

    def _apply(self, event: WorkflowEvent, at: float) -> None:
        match event:
            case WorkflowStarted():
                self.started_at = at
            case CancelAsked():
                self.cancelling = self.cancelling or event
            case WorkflowFinished():
                self.finished, self.ended_at = event, at
            case StepStarted():
                self._started(event, at)
            case StepAnswered(step):
                self.steps[step].answer = event
            case StepPostponed(step, _, reason, for_person):
                self.steps[step].state, self.steps[step].error = POSTPONED, reason
                self.steps[step].paused_at = at if for_person else None
            case StepResumed(step):
                self.steps[step].resume(at)
            case _:
                self._settled(event, at)

    def _started(self, event: StepStarted, at: float) -> None:
        step = self.steps.setdefault(event.step, StepProgress(first_started_at=at))
        step.state, step.attempt, step.started_at, step.ended_at = RUNNING, event.attempt, at, None
        step.asked, step.due, step.taken = event.asked, event.due, event.taken
        step.error, step.answer, step.workflow_id = "", None, event.workflow_id
        step.paused_at, step.paused_s = None, 0.0
        if event.run_id:
            step.run_ids = (*step.run_ids, event.run_id)

    def _settled(
        self, event: StepFinished | StepFailed | StepUnknown | StepSkipped, at: float
    ) -> None:
        step = self.steps[event.step]
        match event:
            case StepFinished(_, _, output, label):
                step.state, step.output, step.label = SUCCEEDED, output, label
            case StepFailed(again_at=None):
                step.state, step.error, step.output = FAILED, event.error, event.output
                step.label = event.label
            case StepFailed():
                step.state, step.error, step.due = RETRYING, event.error, event.again_at
            case StepUnknown(_, _, reason):
                step.state, step.error, step.answer = UNKNOWN, reason, None
            case StepSkipped():
                step.state, step.error = SKIPPED, ""
        step.ended_at = at if step.ended else None

    def scope(self) -> dict[str, JSON]:
        """What expressions can refer to."""
        not_started = StepProgress(SKIPPED)
        steps: dict[str, JSON] = {}
        for name in (step.name for step in all_steps(self.plan.workflow.steps)):
            step = self.steps.get(name, not_started)
            steps[name] = {"output": step.output, "state": step.state, "error": step.error}
        run: JSON = {
            "id": self.workflow_id,
            "name": self.plan.workflow.name,
            "started_at": self.started_at,
            "scheduled_for": self.plan.scheduled_for,
        }
        return {"inputs": self.plan.inputs, "steps": steps, "run": run}

    def label_of(self, used: Iterable[Reference]) -> Label:
        """The label of a value that is made from these references."""
        labels: list[Label] = []
        for reference in used:
            root, name = (*reference.path, "")[:2]
            if root == "inputs":
                labels.append(self.plan.label)
            elif root == "steps" and (step := self.steps.get(str(name))):
                labels.append(step.label)
        return join_labels(labels)


def person_intervals(records: Iterable[WorkflowRecord], now: float) -> list[tuple[float, float]]:
    """When the steps of a workflow waited for a person, from and until; open ones until `now`."""
    since: dict[str, float] = {}
    intervals: list[tuple[float, float]] = []
    for record in records:
        match record.event:
            case StepStarted(step=step, asked=asked) if asked:
                since[step] = record.at
            case StepPostponed(step=step, for_person=True) | StepUnknown(step=step):
                since[step] = record.at
            case WorkflowFinished():
                intervals += [(start, record.at) for start in since.values()]
                since.clear()
            case WorkflowStarted() | CancelAsked():
                pass
            case event:
                if (start := since.pop(event.step, None)) is not None:
                    intervals.append((start, record.at))
    return intervals + [(start, now) for start in since.values()]


def progress_of(workflow_id: str, plan: Plan, records: Sequence[WorkflowRecord]) -> Progress:
    """The progress of a workflow after these records."""
    progress = Progress(workflow_id, plan)
    progress.apply(records)
    return progress


def records_of(workflow_id: str, events: Sequence[StoredEvent]) -> list[WorkflowRecord]:
    """Stored events as records."""
    return [
        WorkflowRecord(workflow_id, stored.seq, stored.at, decode_event(stored.event))
        for stored in events
    ]
