"""Validates a workflow definition before it can be started: names, references, schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.skills.names import unknown_name
from evoclaw.workflows.cron import parse_cron, zone_of
from evoclaw.workflows.definition import (
    CONTINUE,
    FAIL,
    AgentStep,
    ApprovalStep,
    ConditionStep,
    Input,
    ParallelStep,
    Schedule,
    SequenceStep,
    Step,
    ToolStep,
    WaitStep,
    Workflow,
    WorkflowStep,
    all_steps,
)
from evoclaw.workflows.errors import InvalidWorkflow
from evoclaw.workflows.expression_parser import RESERVED, parse_expression
from evoclaw.workflows.expressions import BadExpression, Reference, references
from evoclaw.workflows.templates import references_in
from evoclaw.workflows.toml_lines import TomlKeys

NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
NAME_RULE = "a letter, then letters, digits, `_` and `-`, 64 at most"
MAX_STEPS = 500
ROOTS = ("inputs", "steps", "run")
STEP_FIELDS = ("output", "state", "error")
RUN_FIELDS = ("id", "name", "started_at", "scheduled_for")

ErrorFactory = Callable[[TomlKeys, str, str], EvoClawError]
"""Creates an error from the key path, a fragment of the value there, and the problem."""


def validate_workflow(workflow: Workflow, new_error: ErrorFactory | None = None) -> Workflow:
    """Return a valid definition; raise `InvalidWorkflow` for any other.

    Args:
        workflow: The definition.
        new_error: Creates the error; that of a file names the line.
    """
    _Validator(workflow, new_error or _error_factory(workflow.name)).check()
    return workflow


def check_value(kind: str, value: JSON) -> str:
    """Why a value does not fit an input's type; empty if it does."""
    fits = {
        "string": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "object": is_object(value),
        "array": is_array(value),
        "any": True,
    }
    return "" if fits[kind] else f"must be of type {kind}"


def _error_factory(name: str) -> ErrorFactory:
    def complain(keys: TomlKeys, fragment: str, problem: str) -> EvoClawError:
        return InvalidWorkflow(f"workflow {name!r}, {'.'.join(keys)}: {problem}")

    return complain


class _Validator:
    def __init__(self, workflow: Workflow, complain: ErrorFactory) -> None:
        self._workflow, self._new_error = workflow, complain
        self._all = [step.name for step in all_steps(workflow.steps)]

    def check(self) -> None:
        self._name(("name",), self._workflow.name)
        for name, given in self._workflow.inputs.items():
            self._input(("inputs", name), name, given)
        if not self._workflow.steps:
            raise self._new_error(("steps",), "", "a workflow needs a step")
        if len(self._all) > MAX_STEPS:
            raise self._new_error(("steps",), "", f"more than {MAX_STEPS} steps")
        self._sequence(("steps",), self._workflow.steps, ())
        self._templates(("output",), self._workflow.output, self._all)
        if self._workflow.schedule is not None:
            self._schedule(self._workflow.schedule)

    def _name(self, keys: TomlKeys, name: str) -> None:
        if not NAME_PATTERN.fullmatch(name) or name in RESERVED:
            problem = f"{name[:80]!r} cannot be a name: {NAME_RULE}"
            raise self._new_error(keys, name, problem)

    def _input(self, keys: TomlKeys, name: str, given: Input) -> None:
        self._name(keys, name)
        if given.default is not None and (problem := check_value(given.type, given.default)):
            raise self._new_error((*keys, "default"), "", f"the default of {name!r} {problem}")

    def _sequence(self, keys: TomlKeys, steps: Sequence[Step], before: Collection[str]) -> None:
        """Check steps that run one after the other; each may refer to those before it."""
        seen = list(before)
        for number, step in enumerate(steps):
            here = (*keys, str(number))
            later = [following.name for following in steps[number + 1 :]]
            self._on_error(here, step, later)
            self._step(here, step, seen)
            seen += (inner.name for inner in all_steps([step]))

    def _step(self, keys: TomlKeys, step: Step, before: Collection[str]) -> None:
        self._name((*keys, "name"), step.name)
        if step.name in (FAIL, CONTINUE):
            problem = f"{step.name!r} is a reserved value of on_error; choose another name"
            raise self._new_error((*keys, "name"), step.name, problem)
        if self._all.count(step.name) > 1:
            problem = f"two steps are named {step.name!r}; rename one of them"
            raise self._new_error((*keys, "name"), step.name, problem)
        match step:
            case AgentStep() | ToolStep() | WorkflowStep():
                self._leaf(keys, step, before)
            case WaitStep():
                self._wait(keys, step, before)
            case ApprovalStep():
                self._templates((*keys, "message"), step.message, before)
            case ParallelStep():
                self._require_steps((*keys, "steps"), step.steps)
                for number, inner in enumerate(step.steps):
                    self._on_error((*keys, "steps", str(number)), inner, ())
                    self._step((*keys, "steps", str(number)), inner, before)
            case SequenceStep():
                self._require_steps((*keys, "steps"), step.steps)
                self._sequence((*keys, "steps"), step.steps, before)
            case ConditionStep():
                self._condition(keys, step, before)

    def _require_steps(self, keys: TomlKeys, steps: Sequence[Step]) -> None:
        if not steps:
            raise self._new_error(keys, "", "it has no steps; add one")

    def _on_error(self, keys: TomlKeys, step: Step, later: Sequence[str]) -> None:
        if step.on_error in (FAIL, CONTINUE) or step.on_error in later:
            return
        path, target = (*keys, "on_error"), step.on_error
        if target in self._all:
            problem = f"on_error may only name a later step of the same sequence, not {target!r}"
            raise self._new_error(path, target, problem)
        problem = unknown_name("step", target, (FAIL, CONTINUE, *later))
        raise self._new_error(path, target, f"on_error: {problem}")

    def _leaf(
        self, keys: TomlKeys, step: AgentStep | ToolStep | WorkflowStep, before: Collection[str]
    ) -> None:
        match step:
            case AgentStep():
                if not (step.message or step.inputs):
                    raise self._new_error(keys, "", f"{step.name!r} needs a message or inputs")
                self._templates((*keys, "message"), step.message, before)
                self._templates((*keys, "inputs"), step.inputs, before)
            case ToolStep():
                self._templates((*keys, "arguments"), step.arguments, before)
            case WorkflowStep():
                if step.workflow == self._workflow.name:
                    problem = "a workflow cannot be a step of itself"
                    raise self._new_error((*keys, "workflow"), step.workflow, problem)
                self._templates((*keys, "inputs"), step.inputs, before)

    def _wait(self, keys: TomlKeys, step: WaitStep, before: Collection[str]) -> None:
        if (step.seconds is None) is (not step.until):
            raise self._new_error(keys, "", f"{step.name!r} needs either seconds or until")
        self._templates((*keys, "seconds"), step.seconds, before)
        self._templates((*keys, "until"), step.until, before)

    def _condition(self, keys: TomlKeys, step: ConditionStep, before: Collection[str]) -> None:
        path = (*keys, "if")
        try:
            found = list(references(parse_expression(step.when)))
        except BadExpression as problem:
            raise self._new_error(path, step.when, f"if: {problem}") from None
        self._references(path, found, before)
        self._require_steps(keys, (*step.then, *step.otherwise))
        self._sequence((*keys, "then"), step.then, before)
        self._sequence((*keys, "else"), step.otherwise, before)

    def _templates(self, keys: TomlKeys, value: JSON, before: Collection[str]) -> None:
        """Check the templates in a value, each with its own key path."""
        if isinstance(value, str):
            try:
                found = list(references_in(value))
            except BadExpression as problem:
                raise self._new_error(keys, value, f"{keys[-1]}: {problem}") from None
            self._references(keys, found, before)
        elif is_object(value):
            for key, child in value.items():
                self._templates((*keys, key), child, before)
        elif is_array(value):
            for number, child in enumerate(value):
                self._templates((*keys, str(number)), child, before)

    def _references(
        self, keys: TomlKeys, found: Iterable[Reference], before: Collection[str]
    ) -> None:
        for reference in found:
            if problem := self._problem_with(reference, before):
                # Only the part before a bracket is sure to be spelt as in the file.
                fragment = reference.text.partition("[")[0]
                raise self._new_error(keys, fragment, f"{reference.text}: {problem}")

    def _problem_with(self, reference: Reference, before: Collection[str]) -> str:
        root, *rest = reference.path
        if root not in ROOTS:
            return unknown_name("name", str(root), ROOTS)
        if not rest:
            return f"name a value of {root}, such as {root}.NAME"
        name = str(rest[0])
        if root == "inputs":
            inputs = self._workflow.inputs
            return "" if name in inputs else unknown_name("input", name, inputs)
        if root == "run":
            return "" if name in RUN_FIELDS else unknown_name("value", name, RUN_FIELDS)
        if name not in self._all:
            return unknown_name("step", name, before)
        if name not in before:
            return f"{name!r} has not ended by then; refer only to earlier steps"
        if len(rest) < 2 or rest[1] not in STEP_FIELDS:
            return f"write steps.{name}.output, .state or .error"
        return ""

    def _schedule(self, schedule: Schedule) -> None:
        if bool(schedule.cron) is (schedule.every_s is not None):
            raise self._new_error(("schedule",), "", "a schedule needs either cron or every_s")
        try:
            zone = zone_of(schedule.timezone)
        except EvoClawError as problem:
            raise self._new_error(("schedule", "timezone"), "", str(problem)) from None
        try:
            if schedule.cron:
                parse_cron(schedule.cron).after(0.0, zone)
        except EvoClawError as problem:
            raise self._new_error(("schedule", "cron"), "", f"cron: {problem}") from None
        problem = input_problem(self._workflow, schedule.inputs)
        if problem:
            raise self._new_error(("schedule", "inputs"), "", f"schedule: {problem}")


def input_problem(workflow: Workflow, given: dict[str, JSON]) -> str:
    """Why a workflow cannot start with these inputs; empty if it can."""
    for name, value in given.items():
        if name not in workflow.inputs:
            return unknown_name("input", name, workflow.inputs)
        if problem := check_value(workflow.inputs[name].type, value):
            return f"input {name!r} {problem}"
    missing = [
        name for name, input in workflow.inputs.items() if input.is_required and name not in given
    ]
    return f"inputs are missing: {', '.join(missing)}" if missing else ""


def with_defaults(workflow: Workflow, given: dict[str, JSON]) -> dict[str, JSON]:
    """The inputs, with defaults for those that were not given."""
    return {name: given.get(name, input.default) for name, input in workflow.inputs.items()}
