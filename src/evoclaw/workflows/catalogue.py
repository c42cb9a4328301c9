"""The catalogue of workflows: those in a folder, re-read when a file changes, and those in code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.skills.names import unknown
from evoclaw.workflows.checking import check
from evoclaw.workflows.definition import Workflow, WorkflowStep, every
from evoclaw.workflows.reading import read_workflow

MOST_FILES = 1_000
MAX_BYTES = 256 * 1024
MAX_DEPTH = 5
"""How deep workflows may contain other workflows."""


class Defined(Struct, frozen=True, omit_defaults=True):
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
        self._folder = folder
        self._own = [Defined(workflow.name, workflow=check(workflow)) for workflow in workflows]
        self._read: dict[Path, tuple[tuple[int, int, int], Defined]] = {}

    def all(self) -> Sequence[Defined]:
        """Every entry, as the files are now."""
        found = [*self._own, *self._files()]
        by_name: dict[str, Defined] = {}
        for number, entry in enumerate(found):
            if entry.workflow is None:
                continue
            if first := by_name.get(entry.name):
                source = first.path or "the code"
                problem = f"{entry.path}: {source} defines {entry.name!r} already"
                found[number] = _broken(entry, problem)
            else:
                by_name[entry.name] = entry
        return _without_circles(found)

    def get(self, name: str) -> Workflow | None:
        """The valid workflow of this name."""
        found = (entry.workflow for entry in self.all() if entry.name == name and entry.workflow)
        return next(found, None)

    def names(self) -> Sequence[str]:
        """The names of the valid workflows."""
        return [entry.name for entry in self.all() if entry.workflow is not None]

    def _files(self) -> Sequence[Defined]:
        if self._folder is None:
            return ()
        try:
            paths = sorted(self._folder.glob("*.toml"))[:MOST_FILES]
        except OSError as problem:
            return [Defined(self._folder.name, str(self._folder), problem=str(problem))]
        self._read = {path: self._read[path] for path in paths if path in self._read}
        return [self._file(path) for path in paths]

    def _file(self, path: Path) -> Defined:
        try:
            state = path.stat()
            mark = (state.st_mtime_ns, state.st_size, state.st_ino)
            if (known := self._read.get(path)) is not None and known[0] == mark:
                return known[1]
            if state.st_size > MAX_BYTES:
                return Defined(path.stem, str(path), problem=f"{path} is larger than 256 KB")
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            return Defined(path.stem, str(path), problem=f"{path} is not UTF-8 text")
        except OSError as problem:
            return Defined(path.stem, str(path), problem=f"cannot read {path}: {problem.strerror}")
        defined = _defined(path, text)
        self._read[path] = (mark, defined)
        return defined


def _defined(path: Path, text: str) -> Defined:
    try:
        workflow = read_workflow(text, str(path), path.stem)
    except EvoClawError as problem:
        return Defined(path.stem, str(path), problem=str(problem))
    return Defined(workflow.name, str(path), workflow)


def _without_circles(found: Sequence[Defined]) -> Sequence[Defined]:
    """Mark as invalid each entry whose steps name an unknown workflow, or form a cycle."""
    while True:
        valid = {entry.name: entry.workflow for entry in found if entry.workflow is not None}
        checked = [_checked(entry, valid) for entry in found]
        if checked == found:
            return found
        # Other workflows may have steps that name the ones now marked.
        found = checked


def _checked(entry: Defined, valid: dict[str, Workflow]) -> Defined:
    if entry.workflow is None:
        return entry
    source = entry.path or entry.name
    for step in _inner(entry.workflow):
        if step.workflow not in valid:
            problem = unknown("workflow", step.workflow, valid)
            return _broken(entry, f"{source}, step {step.name!r}: {problem}")
    path = _way_back(entry.name, valid, (entry.name,))
    if path:
        return _broken(entry, f"{source} contains itself: {' > '.join(path)}")
    if _depth(entry.name, valid) > MAX_DEPTH:
        return _broken(entry, f"{source}: workflows are nested more than {MAX_DEPTH} deep")
    return entry


def _inner(workflow: Workflow) -> Sequence[WorkflowStep]:
    return [step for step in every(workflow.steps) if isinstance(step, WorkflowStep)]


def _way_back(name: str, valid: dict[str, Workflow], path: tuple[str, ...]) -> tuple[str, ...]:
    """The cycle from a workflow through its steps to itself; empty if there is none."""
    pending = [(name, path)]
    seen: set[str] = set()
    while pending:
        at, path = pending.pop()
        for step in _inner(valid[at]) if at in valid else ():
            if step.workflow == name:
                return (*path, name)
            if step.workflow not in seen:
                seen.add(step.workflow)
                pending.append((step.workflow, (*path, step.workflow)))
    return ()


def _depth(name: str, valid: dict[str, Workflow], path: tuple[str, ...] = ()) -> int:
    """How deep a workflow contains others; cycles are reported separately."""
    if name in path or name not in valid or len(path) > MAX_DEPTH:
        return len(path)
    inner = {step.workflow for step in _inner(valid[name])}
    return max((_depth(child, valid, (*path, name)) for child in inner), default=len(path) + 1)


def _broken(entry: Defined, problem: str) -> Defined:
    return Defined(entry.name, entry.path, problem=problem)
