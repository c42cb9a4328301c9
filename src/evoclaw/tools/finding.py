"""Searches a tree of local files for names and for lines, in one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import FileOps
from evoclaw.tools.ignore import Ignored
from evoclaw.tools.matches import SNIFFED, UNBOUNDED, Found, Grep, searching
from evoclaw.tools.patterns import Regex
from evoclaw.tools.surveying import Folder, Sight, Surveyable, Visit

MOST_ENTRIES = 100_000
"""Files and folders that one search visits."""
SHARE = 0.8
"""Of the call's timeout: a search ends before it and returns what it has found."""
MAX_MS = 30_000


class Budget:
    """Limits the entries and the time of one search."""

    def __init__(self, timeout_ms: int) -> None:
        self._end = time.monotonic() + SHARE * min(timeout_ms, MAX_MS) / 1000
        self._left = MOST_ENTRIES
        self.stopped = ""
        """Why the search ended early, for the model."""

    def spend(self, entries: int = 1) -> bool:
        """Count visited entries; False once the budget is exhausted."""
        self._left -= entries
        if self._left < 0:
            self.stopped = f"{MOST_ENTRIES:,} entries were looked at"
        elif time.monotonic() > self._end:
            self.stopped = "the time was up"
        return not self.stopped

    def late(self) -> bool:
        """Whether the search has to end."""
        if time.monotonic() > self._end:
            self.stopped = "the time was up"
        return bool(self.stopped)


class LocalTree(FileOps, Surveyable, Protocol):
    """The files of this machine: they can be scanned as a tree."""


class Name(NamedTuple):
    """A file or folder whose name matches."""

    shown: str
    changed: float


@dataclass(frozen=True, slots=True)
class Names:
    """The names to find."""

    regex: Regex
    start: str
    folders: bool
    most: int
    dated: bool
    """Whether modification times are read."""
    head: str = ""
    tail: str = ""
    """The literal start and end of every matching name: cheaper to test than `regex`."""

    def covers(self, folder: str, name: str) -> bool:
        """Whether a name in a folder matches; the folder is as tools name it."""
        if not name.startswith(self.head) or not name.endswith(self.tail):
            return False
        return self.regex.covers(relative(folder + name, self.start))


def ends_of(pattern: str) -> tuple[str, str]:
    """The literal start and end of every name that matches a glob."""
    name = pattern.rpartition("/")[2]
    if set(name) & set("[]{}\\") or "**" in name:
        return "", ""
    stars = [index for index, char in enumerate(name) if char in "*?"]
    return (name[: stars[0]], name[stars[-1] + 1 :]) if stars else (name, name)


def relative(path: str, start: str) -> bytes:
    """The path relative to a folder, as bytes for a pattern."""
    if start != ".":
        path = path[len(start) :].lstrip("/")
    return path.encode(errors="surrogateescape")


async def find_names(files: LocalTree, asked: Names, budget: Budget) -> list[Name]:
    """Find matching names; up to `max_results` + 1, so that the caller can tell there are more."""
    unignored = await Sight.below(Ignored(files, asked.start))
    found: list[Name] = []

    def visit(folder: Folder) -> Iterator[str]:
        base = f"{folder.path}/" if folder.path else ""
        if not budget.spend(len(folder.entries)):
            return
        for name, kind in unignored.look(folder):
            wanted = asked.folders if kind == "dir" else kind != "other"
            if wanted and asked.covers(base, name):
                changed = folder.changed(name) if asked.dated else 0.0
                found.append(Name(base + name + "/" * (kind == "dir"), changed))
            if len(found) > asked.most or budget.stopped:
                return
            if kind == "dir":
                yield name

    await _survey(files, asked.start, visit)
    return found


class Lines(Protocol):
    """Collects the matches of a search."""

    @property
    def room(self) -> int:
        """How many more lines, or files, are wanted; 0 ends the search."""
        ...

    def add(self, found: Found) -> None:
        """Add the matches of one file."""
        ...


async def find_lines(
    files: LocalTree, start: str, wanted: Regex | None, asked: Grep, lines: Lines, budget: Budget
) -> None:
    """Search the files below a folder in sorted order."""
    unignored = await Sight.below(Ignored(files, start))

    def visit(folder: Folder) -> Iterator[str]:
        base = f"{folder.path}/" if folder.path else ""
        if not budget.spend(len(folder.entries)):
            return
        for name, kind in unignored.look(folder):
            if kind == "dir":
                yield name
            elif kind == "file" and (wanted is None or wanted.covers(relative(base + name, start))):
                found = _search(folder, name, base + name, asked, lines, budget)
                if found is not None and found.count:
                    lines.add(found)
            if not lines.room or budget.late():
                return

    await _survey(files, start, visit)


def _search(
    folder: Folder, name: str, path: str, asked: Grep, lines: Lines, budget: Budget
) -> Found | None:
    """Search one file; None if its first bytes show that it has no match."""
    piece = folder.read(name, 0, SNIFFED)
    if not piece or b"\0" in piece or (len(piece) < SNIFFED and not asked.may_be_in(piece)):
        return None
    bounded = asked if asked.most >= UNBOUNDED else replace(asked, most=lines.room)
    work = searching(path, bounded, budget.late, SNIFFED)
    try:
        next(work)
        while piece is not None:
            start, limit = work.send(piece)
            piece = folder.read(name, start, limit)
    except StopIteration as done:
        return done.value
    return None


async def _survey(files: Surveyable, start: str, visit: Visit) -> None:
    """Scan a tree; one that does not exist has no entries."""
    try:
        await files.survey(start, visit)
    except ToolFailure as failure:
        if failure.kind is not ErrorKind.NOT_FOUND:
            raise
