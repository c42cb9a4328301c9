"""Searches a tree of local files for names and for lines, in one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.tools.file_search import SNIFF_BYTES, UNBOUNDED, FileMatches, GrepQuery, scan_file
from evoclaw.tools.gitignore import GitignoreMatcher
from evoclaw.tools.patterns import Regex
from evoclaw.tools.tree_scan import FolderVisitor, ScannedFolder, TreeScanner, UnignoredEntries

MAX_ENTRIES = 100_000
"""Files and folders that one search visits."""
TIMEOUT_SHARE = 0.8
"""Of the call's timeout: a search ends before it and returns what it has found."""
MAX_TIMEOUT_MS = 30_000


class SearchBudget:
    """Limits the entries and the time of one search."""

    def __init__(self, timeout_ms: int) -> None:
        self._end = time.monotonic() + TIMEOUT_SHARE * min(timeout_ms, MAX_TIMEOUT_MS) / 1000
        self._left = MAX_ENTRIES
        self.stopped = ""
        """Why the search ended early, for the model."""

    def spend(self, entries: int = 1) -> bool:
        """Count visited entries; False once the budget is exhausted."""
        self._left -= entries
        if self._left < 0:
            self.stopped = f"{MAX_ENTRIES:,} entries were looked at"
        elif time.monotonic() > self._end:
            self.stopped = "the time was up"
        return not self.stopped

    def is_expired(self) -> bool:
        """Whether the search has to end."""
        if time.monotonic() > self._end:
            self.stopped = "the time was up"
        return bool(self.stopped)


class GrepOutput:
    """Collects matches as lines for the model."""

    def __init__(self, mode: str, limit: int) -> None:
        self._mode, self.remaining = mode, limit
        """How many more lines, or files, are wanted; 0 ends the search."""
        self.lines: list[str] = []

    def add(self, found: FileMatches) -> None:
        """Add the matches of one file."""
        self.remaining -= found.count if self._mode == "content" else 1
        if self._mode == "files":
            self.lines.append(found.path)
        elif self._mode == "count":
            self.lines.append(f"{found.path}:{found.count}")
        else:
            self.lines += ["--"] if self.lines and found.separate_groups else []
            self.lines += found.lines


class NameMatch(NamedTuple):
    """A file or folder whose name matches."""

    path: str
    modified_at: float


@dataclass(frozen=True, slots=True)
class NameQuery:
    """The names to find."""

    regex: Regex
    start: str
    folders: bool
    max_results: int
    with_mtime: bool
    """Whether modification times are read."""
    head: str = ""
    tail: str = ""
    """The literal start and end of every matching name: cheaper to test than `regex`."""

    def matches(self, folder: str, name: str) -> bool:
        """Whether a name in a folder matches; the folder is as tools name it."""
        if not name.startswith(self.head) or not name.endswith(self.tail):
            return False
        return self.regex.matches_all(relative_path(folder + name, self.start))


def literal_ends(pattern: str) -> tuple[str, str]:
    """The literal start and end of every name that matches a glob."""
    name = pattern.rpartition("/")[2]
    if set(name) & set("[]{}\\") or "**" in name:
        return "", ""
    stars = [index for index, char in enumerate(name) if char in "*?"]
    return (name[: stars[0]], name[stars[-1] + 1 :]) if stars else (name, name)


def relative_path(path: str, start: str) -> bytes:
    """The path relative to a folder, as bytes for a pattern."""
    if start != ".":
        path = path[len(start) :].lstrip("/")
    return path.encode(errors="surrogateescape")


async def find_names(files: TreeScanner, query: NameQuery, budget: SearchBudget) -> list[NameMatch]:
    """Find matching names; up to `max_results` + 1, so that the caller can tell there are more."""
    unignored = await UnignoredEntries.load(GitignoreMatcher(files, query.start))
    found: list[NameMatch] = []

    def visit(folder: ScannedFolder) -> Iterator[str]:
        base = f"{folder.path}/" if folder.path else ""
        if not budget.spend(len(folder.entries)):
            return
        for name, kind in unignored.entries(folder):
            wanted = query.folders if kind == "dir" else kind != "other"
            if wanted and query.matches(base, name):
                changed = folder.modified_at(name) if query.with_mtime else 0.0
                found.append(NameMatch(base + name + "/" * (kind == "dir"), changed))
            if len(found) > query.max_results or budget.stopped:
                return
            if kind == "dir":
                yield name

    await _scan(files, query.start, visit)
    return found


async def find_lines(
    files: TreeScanner,
    start: str,
    wanted: Regex | None,
    query: GrepQuery,
    lines: GrepOutput,
    budget: SearchBudget,
) -> None:
    """Search the files below a folder in sorted order."""
    unignored = await UnignoredEntries.load(GitignoreMatcher(files, start))

    def visit(folder: ScannedFolder) -> Iterator[str]:
        base = f"{folder.path}/" if folder.path else ""
        if not budget.spend(len(folder.entries)):
            return
        for name, kind in unignored.entries(folder):
            if kind == "dir":
                yield name
            elif kind == "file" and (
                wanted is None or wanted.matches_all(relative_path(base + name, start))
            ):
                found = _search(folder, name, base + name, query, lines, budget)
                if found is not None and found.count:
                    lines.add(found)
            if not lines.remaining or budget.is_expired():
                return

    await _scan(files, start, visit)


def _search(
    folder: ScannedFolder,
    name: str,
    path: str,
    query: GrepQuery,
    lines: GrepOutput,
    budget: SearchBudget,
) -> FileMatches | None:
    """Search one file; None if its first bytes show that it has no match."""
    piece = folder.read(name, 0, SNIFF_BYTES)
    if not piece or b"\0" in piece or (len(piece) < SNIFF_BYTES and not query.may_match(piece)):
        return None
    bounded = query if query.max_lines >= UNBOUNDED else replace(query, max_lines=lines.remaining)
    work = scan_file(path, bounded, budget.is_expired, SNIFF_BYTES)
    try:
        next(work)
        while piece is not None:
            start, limit = work.send(piece)
            piece = folder.read(name, start, limit)
    except StopIteration as done:
        return done.value
    return None


async def _scan(files: TreeScanner, start: str, visit: FolderVisitor) -> None:
    """Scan a tree; one that does not exist has no entries."""
    try:
        await files.scan_tree(start, visit)
    except ToolFailure as failure:
        if failure.kind is not ErrorKind.NOT_FOUND:
            raise
