"""Reads a workflow from TOML; errors name the file, the line, and a likely correction."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import fields

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.toml import parse_toml
from evoclaw.skills.names import unknown_name
from evoclaw.workflows.definition import STEP_TYPES, Input, Retry, Schedule, Workflow
from evoclaw.workflows.errors import InvalidWorkflow
from evoclaw.workflows.toml_lines import TomlKeys, TomlLines
from evoclaw.workflows.validation import validate_workflow

_STEPS = ("steps", "then", "else")
"""The keys that contain steps."""


def read_workflow(text: str, file: str, name: str = "") -> Workflow:
    """Read and check a definition.

    Args:
        text: TOML.
        file: The file name for error messages.
        name: The name of the workflow, if the text has none.
    """
    return _WorkflowReader(text, file).read(name)


class _WorkflowReader:
    def __init__(self, text: str, file: str) -> None:
        self._values, self._file, self._lines = parse_toml(text, file), file, TomlLines(text)

    def read(self, name: str) -> Workflow:
        values = self._values
        values.setdefault("name", name)
        self._check_keys((), values, _names(Workflow))
        self._steps((), values)
        for table, shape in ("inputs", Input), ("schedule", Schedule):
            self._table(table, shape)
        try:
            workflow = msgspec.convert(values, Workflow)
        except msgspec.ValidationError as problem:
            message, _, where = str(problem).partition(" - at `$")
            keys = tuple(re.findall(r"[\w-]+", where))
            key = f"{keys[-1]}: " if keys and not keys[-1].isdigit() else ""
            raise self._error(keys, "", key + message) from None
        return validate_workflow(workflow, self._error)

    def _error(self, keys: TomlKeys, fragment: str, problem: str) -> EvoClawError:
        line = self._lines.line(keys, fragment)
        message = f"{self._file}{f', line {line}' if line else ''}: {problem}"
        return InvalidWorkflow(message, line=line, setting=".".join(keys), problem=problem)

    def _check_keys(self, keys: TomlKeys, table: dict[str, JSON], names: Iterable[str]) -> None:
        for key in table:
            if key not in names:
                raise self._error((*keys, key), "", unknown_name("key", key, names))

    def _table(self, name: str, shape: type[Input | Schedule]) -> None:
        given = self._values.get(name)
        if not is_object(given):
            return
        if shape is Schedule:
            self._check_keys((name,), given, _names(shape))
            return
        for key, table in given.items():
            if is_object(table):
                self._check_keys((name, key), table, _names(shape))

    def _steps(self, keys: TomlKeys, table: dict[str, JSON]) -> None:
        """Check the kinds and keys of the steps below a table."""
        for below in _STEPS:
            steps = table.get(below)
            for number, step in enumerate(steps if is_array(steps) else ()):
                if is_object(step):
                    self._step((*keys, below, str(number)), step)

    def _step(self, keys: TomlKeys, step: dict[str, JSON]) -> None:
        shapes = {shape.kind: shape for shape in STEP_TYPES}
        kind = step.get("kind")
        if kind is None:
            raise self._error(keys, "", f"kind is missing; use one of {', '.join(shapes)}")
        shape = shapes.get(kind) if isinstance(kind, str) else None
        if shape is None:
            problem = unknown_name("kind", str(kind), shapes)
            raise self._error((*keys, "kind"), "", problem)
        self._check_keys(keys, step, ("kind", *_names(shape)))
        if is_object(retry := step.get("retry")):
            self._check_keys((*keys, "retry"), retry, _names(Retry))
        if "name" not in step:
            raise self._error(keys, "", "name is missing; every step needs one")
        self._steps(keys, step)


def _names(shape: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in fields(shape))
