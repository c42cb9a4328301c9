"""The catalogue of workflows: those in a folder, re-read when a file changes, and those in code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.skills.names import unknown_name
from evoclaw.workflows.definition import Workflow, WorkflowStep, all_steps
from evoclaw.workflows.errors import InvalidWorkflow
from evoclaw.workflows.toml_reader import read_workflow
from evoclaw.workflows.validation import validate_workflow

MAX_WORKFLOW_FILES = 1_000
MAX_WORKFLOW_FILE_BYTES = 256 * 1024
MAX_WORKFLOW_DEPTH = 5
"""How deep workflows may contain other workflows."""


class WorkflowEntry(Struct, frozen=True, omit_defaults=True):
    """A workflow definition, or why it is invalid."""

    name: str
    path: str = ""
    """The file of the definition; empty if it is defined in code."""
    workflow: Workflow | None = None
    problem: str = ""
    next_at: float | None = None
    """The next start by its schedule, if it has one."""


class Catalogue:
    """The workflows that can be started. An invalid file is reported and does not affect others."""

    def __init__(self, folder: Path | None = None, workflows: Iterable[Workflow] = ()) -> None:
        """Choose the folder and the workflows in code; an invalid one in code raises at once."""
        self.folder = folder
        self._in_code = [
            WorkflowEntry(workflow.name, workflow=validate_workflow(workflow))
            for workflow in workflows
        ]
        self._cache: dict[Path, tuple[tuple[int, int, int], WorkflowEntry]] = {}

    def all(self) -> Sequence[WorkflowEntry]:
        """Every entry, as the files are now."""
        found = [*self._in_code, *self._files()]
        by_name: dict[str, WorkflowEntry] = {}
        for number, entry in enumerate(found):
            if entry.workflow is None:
                continue
            if first := by_name.get(entry.name):
                source = first.path or "the code"
                problem = f"{entry.path}: {source} defines {entry.name!r} already"
                found[number] = _broken(entry, problem)
            else:
                by_name[entry.name] = entry
        return _without_cycles(found)

    def get(self, name: str) -> Workflow | None:
        """The valid workflow of this name."""
        found = (entry.workflow for entry in self.all() if entry.name == name and entry.workflow)
        return next(found, None)

    def names(self) -> Sequence[str]:
        """The names of the valid workflows."""
        return [entry.name for entry in self.all() if entry.workflow is not None]

    def check(self, name: str, path: Path, text: str) -> None:
        """Check a text as if it were in a file; `InvalidWorkflow` if it is not valid there."""
        workflow = read_workflow(text, str(path), path.stem)
        if workflow.name != name:
            raise InvalidWorkflow(
                f"name must stay {name!r}: runs and steps use it. Create another workflow to have "
                "another name.",
                setting="name",
            )
        others = [entry for entry in self.all() if entry.name != name]
        checked = _without_cycles([*others, WorkflowEntry(name, str(path), workflow)])[-1]
        if checked.problem:
            raise InvalidWorkflow(checked.problem)

    def users_of(self, name: str) -> Sequence[str]:
        """The workflows with a step that runs this one."""
        return [
            entry.name
            for entry in self.all()
            if entry.workflow is not None
            and any(step.workflow == name for step in _workflow_steps(entry.workflow))
        ]

    def _files(self) -> Sequence[WorkflowEntry]:
        if self.folder is None:
            return ()
        try:
            paths = sorted(self.folder.glob("*.toml"))[:MAX_WORKFLOW_FILES]
        except OSError as problem:
            return [WorkflowEntry(self.folder.name, str(self.folder), problem=str(problem))]
        self._cache = {path: self._cache[path] for path in paths if path in self._cache}
        return [self._file(path) for path in paths]

    def _file(self, path: Path) -> WorkflowEntry:
        try:
            state = path.stat()
            mark = (state.st_mtime_ns, state.st_size, state.st_ino)
            if (known := self._cache.get(path)) is not None and known[0] == mark:
                return known[1]
            if state.st_size > MAX_WORKFLOW_FILE_BYTES:
                return WorkflowEntry(path.stem, str(path), problem=f"{path} is larger than 256 KB")
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            return WorkflowEntry(path.stem, str(path), problem=f"{path} is not UTF-8 text")
        except OSError as problem:
            return WorkflowEntry(
                path.stem, str(path), problem=f"cannot read {path}: {problem.strerror}"
            )
        defined = _entry_of(path, text)
        self._cache[path] = (mark, defined)
        return defined


def _entry_of(path: Path, text: str) -> WorkflowEntry:
    try:
        workflow = read_workflow(text, str(path), path.stem)
    except EvoClawError as problem:
        return WorkflowEntry(path.stem, str(path), problem=str(problem))
    return WorkflowEntry(workflow.name, str(path), workflow)


def _without_cycles(found: Sequence[WorkflowEntry]) -> Sequence[WorkflowEntry]:
    """Mark as invalid each entry whose steps name an unknown workflow, or form a cycle."""
    while True:
        valid = {entry.name: entry.workflow for entry in found if entry.workflow is not None}
        checked = [_checked(entry, valid) for entry in found]
        if checked == found:
            return found
        # Other workflows may have steps that name the ones now marked.
        found = checked


def _checked(entry: WorkflowEntry, valid: dict[str, Workflow]) -> WorkflowEntry:
    if entry.workflow is None:
        return entry
    source = entry.path or entry.name
    for step in _workflow_steps(entry.workflow):
        if step.workflow not in valid:
            problem = unknown_name("workflow", step.workflow, valid)
            return _broken(entry, f"{source}, step {step.name!r}: {problem}")
    path = _cycle(entry.name, valid, (entry.name,))
    if path:
        return _broken(entry, f"{source} contains itself: {' > '.join(path)}")
    if _depth(entry.name, valid) > MAX_WORKFLOW_DEPTH:
        return _broken(entry, f"{source}: workflows are nested more than {MAX_WORKFLOW_DEPTH} deep")
    return entry


def _workflow_steps(workflow: Workflow) -> Sequence[WorkflowStep]:
    return [step for step in all_steps(workflow.steps) if isinstance(step, WorkflowStep)]


def _cycle(name: str, valid: dict[str, Workflow], path: tuple[str, ...]) -> tuple[str, ...]:
    """The cycle from a workflow through its steps to itself; empty if there is none."""
    pending = [(name, path)]
    seen: set[str] = set()
    while pending:
        at, path = pending.pop()
        for step in _workflow_steps(valid[at]) if at in valid else ():
            if step.workflow == name:
                return (*path, name)
            if step.workflow not in seen:
                seen.add(step.workflow)
                pending.append((step.workflow, (*path, step.workflow)))
    return ()


def _depth(name: str, valid: dict[str, Workflow], path: tuple[str, ...] = ()) -> int:
    """How deep a workflow contains others; cycles are reported separately."""
    if name in path or name not in valid or len(path) > MAX_WORKFLOW_DEPTH:
        return len(path)
    inner = {step.workflow for step in _workflow_steps(valid[name])}
    return max((_depth(child, valid, (*path, name)) for child in inner), default=len(path) + 1)


def _broken(entry: WorkflowEntry, problem: str) -> WorkflowEntry:
    return WorkflowEntry(entry.name, entry.path, problem=problem)
