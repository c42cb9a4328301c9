"""The workflows there are: those of a folder, read again when a file changes, and those in code."""

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
"""Workflows inside of each other."""


class Defined(Struct, frozen=True, omit_defaults=True):
    """A definition, or what is wrong with it."""

    name: str
    path: str = ""
    """Its file; empty if it is defined in code."""
    workflow: Workflow | None = None
    problem: str = ""
    next_at: float | None = None
    """When it starts by itself next, if it does."""


class Catalogue:
    """What can be started. A broken file is reported, and nothing else suffers for it."""

    def __init__(self, folder: Path | None = None, workflows: Iterable[Workflow] = ()) -> None:
        """Choose where definitions come from; those in code are refused at once if broken."""
        self._folder = folder
        self._own = [Defined(one.name, workflow=check(one)) for one in workflows]
        self._read: dict[Path, tuple[tuple[int, int, int], Defined]] = {}

    def all(self) -> Sequence[Defined]:
        """Every definition, as the files are now."""
        found = [*self._own, *self._files()]
        by_name: dict[str, Defined] = {}
        for number, one in enumerate(found):
            if one.workflow is None:
                continue
            if first := by_name.get(one.name):
                place = first.path or "the code"
                found[number] = _broken(one, f"{one.path}: {place} defines {one.name!r} already")
            else:
                by_name[one.name] = one
        return _without_circles(found)

    def get(self, name: str) -> Workflow | None:
        """One that can be started."""
        return next((one.workflow for one in self.all() if one.name == name and one.workflow), None)

    def names(self) -> Sequence[str]:
        """Those that can be started."""
        return [one.name for one in self.all() if one.workflow is not None]

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
                return Defined(path.stem, str(path), problem=f"{path} has more than 256 KB")
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
    """Break those whose steps name workflows that are not there, or that lead back to them."""
    while True:
        there = {one.name: one.workflow for one in found if one.workflow is not None}
        checked = [_checked(one, there) for one in found]
        if checked == found:
            return found
        # Without those, others may have steps that are not there any more.
        found = checked


def _checked(one: Defined, there: dict[str, Workflow]) -> Defined:
    if one.workflow is None:
        return one
    for step in _inner(one.workflow):
        if step.workflow not in there:
            problem = unknown("workflow", step.workflow, there)
            return _broken(one, f"{one.path or one.name}, step {step.name!r}: {problem}")
    way = _way_back(one.name, there, (one.name,))
    if way:
        return _broken(one, f"{one.path or one.name} leads back to itself: {' > '.join(way)}")
    if _depth(one.name, there) > MAX_DEPTH:
        return _broken(one, f"{one.path or one.name}: workflows are more than {MAX_DEPTH} deep")
    return one


def _inner(workflow: Workflow) -> Sequence[WorkflowStep]:
    return [step for step in every(workflow.steps) if isinstance(step, WorkflowStep)]


def _way_back(name: str, there: dict[str, Workflow], way: tuple[str, ...]) -> tuple[str, ...]:
    """The way from a workflow through its steps to itself; empty if there is none."""
    waiting = [(name, way)]
    seen: set[str] = set()
    while waiting:
        at, way = waiting.pop()
        for step in _inner(there[at]) if at in there else ():
            if step.workflow == name:
                return (*way, name)
            if step.workflow not in seen:
                seen.add(step.workflow)
                waiting.append((step.workflow, (*way, step.workflow)))
    return ()


def _depth(name: str, there: dict[str, Workflow], way: tuple[str, ...] = ()) -> int:
    """How many are inside of each other; those that lead in a circle are refused as that."""
    if name in way or name not in there or len(way) > MAX_DEPTH:
        return len(way)
    inner = {step.workflow for step in _inner(there[name])}
    return max((_depth(one, there, (*way, name)) for one in inner), default=len(way) + 1)


def _broken(one: Defined, problem: str) -> Defined:
    return Defined(one.name, one.path, problem=problem)
