"""Finding names and lines in a tree that can be looked through in one go."""

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
"""Files and folders one search looks at."""
SHARE = 0.8
"""Of the time a call has: what was found is better than a timeout."""
MAX_MS = 30_000


class Budget:
    """How much one search may look at, and how long."""

    def __init__(self, timeout_ms: int) -> None:
        self._end = time.monotonic() + SHARE * min(timeout_ms, MAX_MS) / 1000
        self._left = MOST_ENTRIES
        self.stopped = ""
        """Why the search ended early, for the model."""

    def spend(self, entries: int = 1) -> bool:
        """Count entries; False if there is nothing left."""
        self._left -= entries
        if self._left < 0:
            self.stopped = f"{MOST_ENTRIES:,} entries were looked at"
        elif time.monotonic() > self._end:
            self.stopped = "the time was up"
        return not self.stopped

    def late(self) -> bool:
        """Whether the time is up."""
        if time.monotonic() > self._end:
            self.stopped = "the time was up"
        return bool(self.stopped)


class LocalTree(FileOps, Surveyable, Protocol):
    """Files of this machine."""


class Name(NamedTuple):
    """One that was found."""

    shown: str
    changed: float


@dataclass(frozen=True, slots=True)
class Names:
    """Which names are looked for."""

    regex: Regex
    start: str
    folders: bool
    most: int
    dated: bool
    """Whether it matters when they were changed."""
    head: str = ""
    tail: str = ""
    """What every such name begins and ends with: cheaper to look at than the expression."""

    def covers(self, folder: str, name: str) -> bool:
        """Whether a name in a folder, as tools name it, is one of them."""
        if not name.startswith(self.head) or not name.endswith(self.tail):
            return False
        return self.regex.covers(relative(folder + name, self.start))


def ends_of(pattern: str) -> tuple[str, str]:
    """What every name that a glob covers begins and ends with."""
    name = pattern.rpartition("/")[2]
    if set(name) & set("[]{}\\") or "**" in name:
        return "", ""
    stars = [place for place, char in enumerate(name) if char in "*?"]
    return (name[: stars[0]], name[stars[-1] + 1 :]) if stars else (name, name)


def relative(path: str, start: str) -> bytes:
    """A path below a folder, as patterns see it."""
    if start != ".":
        path = path[len(start) :].lstrip("/")
    return path.encode(errors="surrogateescape")


async def find_names(files: LocalTree, asked: Names, budget: Budget) -> list[Name]:
    """The names below a folder that are looked for, one more than the most at most."""
    sight = await Sight.below(Ignored(files, asked.start))
    found: list[Name] = []

    def visit(folder: Folder) -> Iterator[str]:
        base = f"{folder.path}/" if folder.path else ""
        if not budget.spend(len(folder.entries)):
            return
        for name, kind in sight.look(folder):
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
    """Where what was found is gathered."""

    @property
    def room(self) -> int:
        """How many more lines, or files, are taken; 0 ends the search."""
        ...

    def add(self, found: Found) -> None:
        """Take what was found in one file."""
        ...


async def find_lines(
    files: LocalTree, start: str, wanted: Regex | None, asked: Grep, lines: Lines, budget: Budget
) -> None:
    """Search the files below a folder, in order."""
    sight = await Sight.below(Ignored(files, start))

    def visit(folder: Folder) -> Iterator[str]:
        base = f"{folder.path}/" if folder.path else ""
        if not budget.spend(len(folder.entries)):
            return
        for name, kind in sight.look(folder):
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
    """Search one file; most have nothing to find, which is seen at once."""
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
    """Look through a tree; there is nothing to find in one that is not there."""
    try:
        await files.survey(start, visit)
    except ToolFailure as failure:
        if failure.kind is not ErrorKind.NOT_FOUND:
            raise
