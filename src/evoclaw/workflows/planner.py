"""Plans the next moves of a workflow: a pure function of its progress and the time.

After a crash it returns the same again. It decides some events by itself, such as that a wait has
ended; these are stored as they are. Steps for agents, tools and workflows are listed to be run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.workflows.definition import (
    CONTINUE,
    FAIL,
    AgentStep,
    ApprovalStep,
    ConditionStep,
    GroupStep,
    LeafStep,
    ParallelStep,
    SequenceStep,
    Step,
    ToolStep,
    WaitStep,
    WorkflowStep,
)
from evoclaw.workflows.events import (
    StepDecision,
    StepFailed,
    StepFinished,
    StepSkipped,
    StepStarted,
    WorkflowEvent,
    WorkflowFinished,
)
from evoclaw.workflows.expression_parser import parse_expression
from evoclaw.workflows.expressions import ExpressionFailed, evaluate, truth
from evoclaw.workflows.progress import (
    FAILED,
    RETRYING,
    SUCCEEDED,
    UNKNOWN,
    Progress,
    StepProgress,
)
from evoclaw.workflows.templates import fill, fill_text

MAX_TIMESTAMP_S = 253_402_300_799.0
"""The end of the year 9999, the last date: no wait ends later."""


@dataclass(slots=True)
class PlannedMoves:
    """The next moves of a workflow."""

    events: list[WorkflowEvent] = field(default_factory=list[WorkflowEvent])
    """Events to store; then plan again."""
    to_run: list[LeafStep] = field(default_factory=list[LeafStep])
    """Started steps to run through agents, tools or workflows."""
    due: float | None = None
    """When to plan again, if nothing happens before."""

    def wait_until(self, until: float | None) -> None:
        """Plan again at this time, or earlier."""
        if until is not None:
            self.due = until if self.due is None else min(self.due, until)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of steps that have all ended."""

    failed: str = ""
    """Why they failed; empty if they succeeded."""
    output: JSON = None


def plan_next(progress: Progress, now: float) -> PlannedMoves:
    """The next moves of a workflow that is not being cancelled."""
    return _Planner(progress, now).plan()


def run_id_of(workflow_id: str, step: str, attempt: int) -> str:
    """The run id of an agent step: the same for the same attempt, also after a crash."""
    return f"{workflow_id}-{step}-{attempt}"


def child_id_of(workflow_id: str, step: str, attempt: int) -> str:
    """The child id of a workflow step: the same for the same attempt, also after a crash."""
    digest = sha256(run_id_of(workflow_id, step, attempt).encode()).hexdigest()
    return f"wf_{digest[:24]}"


class _Planner:
    def __init__(self, progress: Progress, now: float) -> None:
        self._progress, self._now = progress, now
        self._moves = PlannedMoves()
        self._scope = progress.scope()

    def plan(self) -> PlannedMoves:
        workflow = self._progress.plan.workflow
        outcome = self._sequence(workflow.steps)
        if outcome is None or self._moves.events:
            return self._moves
        error, output = outcome.failed, outcome.output
        if not error and workflow.output is not None:
            try:
                output = fill(workflow.output, self._scope)
            except EvoClawError as problem:
                error = f"output: {problem}"
        end = (
            WorkflowFinished(FAILED, error=error) if error else WorkflowFinished(SUCCEEDED, output)
        )
        self._moves.events.append(end)
        return self._moves

    def _sequence(self, steps: Sequence[Step]) -> GroupOutcome | None:
        """Plan steps that run one after the other; None while they have not ended."""
        output: JSON = None
        jump = ""
        for step in steps:
            if jump and step.name != jump:
                continue
            jump = ""
            done = self._step(step)
            if done is None:
                return None
            if done.failed and step.on_error == FAIL:
                return done
            if done.failed and step.on_error != CONTINUE:
                jump = step.on_error
            output = done.output
        return GroupOutcome(output=output)

    def _step(self, step: Step) -> GroupOutcome | None:
        current = self._progress.steps.get(step.name)
        if current is None:
            self._start(step, 1)
            return None
        if current.ended:
            error = current.error or "failed" if current.state == FAILED else ""
            return GroupOutcome(f"{step.name}: {error}" if error else "", current.output)
        match step:
            case AgentStep() | ToolStep() | WorkflowStep():
                self._leaf(step, current)
            case WaitStep():
                self._wait(step, current)
            case ApprovalStep():
                self._approval(step, current)
            case _:
                self._group(step, current)
        return None

    def _add_event(self, event: WorkflowEvent) -> None:
        self._moves.events.append(event)

    def _start(self, step: Step, attempt: int) -> None:
        name, workflow_id = step.name, self._progress.workflow_id
        try:
            match step:
                case AgentStep():
                    started = StepStarted(name, attempt, run_id_of(workflow_id, name, attempt))
                case WorkflowStep():
                    child = child_id_of(workflow_id, name, attempt)
                    started = StepStarted(name, attempt, workflow_id=child)
                case WaitStep():
                    started = StepStarted(name, attempt, due=self._until(step))
                case ApprovalStep():
                    asked = fill_text(step.message, self._scope)
                    due = None if step.timeout_s is None else self._now + step.timeout_s
                    started = StepStarted(name, attempt, asked=asked, due=due)
                case ConditionStep():
                    yes = truth(evaluate(parse_expression(step.when), self._scope))
                    started = StepStarted(name, attempt, taken="then" if yes else "else")
                case _:
                    started = StepStarted(name, attempt)
        except EvoClawError as problem:
            self._add_event(StepStarted(name, attempt))
            self._add_event(StepFailed(name, attempt, str(problem)))
        else:
            self._add_event(started)

    def _leaf(self, step: LeafStep, current: StepProgress) -> None:
        answer = current.answer
        if current.state == RETRYING and self._now >= (current.due or 0):
            self._start(step, current.attempt + 1)
        elif current.state == RETRYING:
            self._moves.wait_until(current.due)
        elif current.state != UNKNOWN:
            self._moves.to_run.append(step)
        elif answer is not None:
            match answer.decision:
                case StepDecision.RETRY:
                    self._start(step, current.attempt + 1)
                case StepDecision.SKIP:
                    self._add_event(StepSkipped(step.name, answer.reason))
                case _:
                    error = f"{current.error}; {answer.by} marked the step as failed"
                    self._add_event(StepFailed(step.name, current.attempt, error))

    def _wait(self, step: WaitStep, current: StepProgress) -> None:
        if current.due is None or self._now >= current.due:
            self._add_event(StepFinished(step.name, current.attempt))
        else:
            self._moves.wait_until(current.due)

    def _until(self, step: WaitStep) -> float:
        if step.until:
            text = fill_text(step.until, self._scope).strip()
            return _parse_time(step.name, text)
        seconds = fill(step.seconds, self._scope)
        if isinstance(seconds, str):
            seconds = _number(seconds)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not (number and seconds >= 0):
            raise ExpressionFailed(f"{step.name}: seconds must be a number, 0 or more")
        return min(MAX_TIMESTAMP_S, self._now + seconds)

    def _approval(self, step: ApprovalStep, current: StepProgress) -> None:
        answer = current.answer
        if answer is None:
            if current.due is not None and self._now >= current.due:
                self._add_event(
                    StepFailed(step.name, current.attempt, "no person answered in time")
                )
            self._moves.wait_until(current.due)
            return
        yes = answer.decision is StepDecision.APPROVE
        output = {"approved": yes, "by": answer.by, "reason": answer.reason}
        if yes:
            self._add_event(StepFinished(step.name, current.attempt, output))
        else:
            why = f": {answer.reason}" if answer.reason else ""
            error = f"denied by {answer.by}{why}"
            self._add_event(StepFailed(step.name, current.attempt, error, output))

    def _group(self, step: GroupStep, current: StepProgress) -> None:
        match step:
            case ParallelStep():
                done = self._parallel(step)
                inner: Sequence[Step] = step.steps
            case SequenceStep():
                done, inner = self._sequence(step.steps), step.steps
            case ConditionStep():
                inner = step.then if current.taken == "then" else step.otherwise
                done = self._sequence(inner)
        if done is None:
            return
        label = self._progress.label_of(())
        for child in inner:
            if found := self._progress.steps.get(child.name):
                label = label | found.label
        if done.failed:
            self._add_event(
                StepFailed(step.name, current.attempt, done.failed, done.output, label=label)
            )
        else:
            self._add_event(StepFinished(step.name, current.attempt, done.output, label))

    def _parallel(self, group: ParallelStep) -> GroupOutcome | None:
        """Plan concurrent steps; after a failure the started ones still run to their end."""
        room, over, failed = group.limit, True, ""
        output: dict[str, JSON] = {}
        for step in group.steps:
            current = self._progress.steps.get(step.name)
            if current is None and (failed or not room):
                over = over and bool(failed)
                continue
            done = self._step(step)
            if done is None:
                room, over = room - 1, False
                continue
            output[step.name] = done.output
            if done.failed and step.on_error == FAIL:
                failed = failed or done.failed
        return GroupOutcome(failed, output) if over else None


def filled_inputs(step: LeafStep, progress: Progress) -> JSON:
    """The inputs or arguments of a step, with templates filled in; raises as `fill` does."""
    scope = progress.scope()
    match step:
        case AgentStep():
            return fill({"message": step.message, "inputs": step.inputs}, scope)
        case ToolStep():
            return fill(step.arguments, scope)
        case WorkflowStep():
            return fill(step.inputs, scope)


def templates_of(step: LeafStep) -> JSON:
    """All templates of a step, to find their references."""
    match step:
        case AgentStep():
            return [step.message, step.inputs]
        case ToolStep():
            return step.arguments
        case WorkflowStep():
            return step.inputs


def _number(text: str) -> JSON:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_time(name: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        problem = f"{name}: {text[:40]!r} is not a time; write 2030-01-31T08:00:00+01:00"
        raise ExpressionFailed(problem) from None
