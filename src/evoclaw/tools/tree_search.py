"""Searches a tree of local files for names and for lines, in one thread.

What `.gitignore` ignores is left out. A visitor is called for each folder and handles its entries
in order; when it yields a sub-folder, that one is scanned before the visitor continues. Files of
other machines are walked entry by entry instead: `tools.gitignore.walk_unignored`.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import FileOps
from evoclaw.tools.file_search import SNIFF_BYTES, UNBOUNDED, FileMatches, GrepQuery, scan_file
from evoclaw.tools.gitignore import MAX_GITIGNORE_BYTES, GitignoreMatcher, GitignoreRules
from evoclaw.tools.patterns import Regex

GITIGNORE_FILE = ".gitignore"


class ScannedFolder(Protocol):
    """A folder while it is visited."""

    @property
    def path(self) -> str:
        """The path as tools name it; empty for the workspace itself."""
        ...

    @property
    def entries(self) -> Sequence[tuple[str, str]]:
        """The name and kind of each entry, in sorted order."""
        ...

    def read(self, name: str, start: int, limit: int) -> bytes | None:
        """Read a regular file of this folder; None if it cannot be read."""
        ...

    def modified_at(self, name: str) -> float:
        """The modification time of an entry."""
        ...


FolderVisitor: TypeAlias = Callable[[ScannedFolder], Iterator[str]]


@runtime_checkable
class TreeScanner(FileOps, Protocol):
    """Files of this machine, which can be scanned as a tree in one thread."""

    async def scan_tree(self, path: str, visit: FolderVisitor) -> None:
        """Call the visitor for this folder and all below, in a thread; re-raise its exceptions."""
        ...


class UnignoredEntries:
    """Filters the entries of a folder by the `.gitignore` rules of it and the folders above."""

    def __init__(self, above: Sequence[tuple[str, GitignoreRules]]) -> None:
        """Start with the rules of the folders above the start, nearest first."""
        self._rules: dict[str, list[tuple[str, GitignoreRules]]] = {}
        self._above = list(above)

    @classmethod
    async def load(cls, ignored: GitignoreMatcher) -> UnignoredEntries:
        """Read the rules of the folders above the start."""
        return cls(await ignored.inherited_rules())

    def entries(self, folder: ScannedFolder) -> list[tuple[str, str]]:
        """The name and kind of each entry that is not ignored."""
        rules = self._rules_for(folder)
        if not rules:
            return [entry for entry in folder.entries if entry[0] != ".git"]
        return [
            (name, kind)
            for name, kind in folder.entries
            if name != ".git" and not _is_ignored(rules, folder.path, name, kind)
        ]

    def _rules_for(self, folder: ScannedFolder) -> list[tuple[str, GitignoreRules]]:
        above = self._rules.get(posixpath.dirname(folder.path), self._above)
        if not folder.path:
            above = self._above
        own = (
            folder.read(GITIGNORE_FILE, 0, MAX_GITIGNORE_BYTES)
            if (GITIGNORE_FILE, "file") in folder.entries
            else None
        )
        text = (own or b"").removeprefix(b"\xef\xbb\xbf")
        found = [(folder.path, GitignoreRules(text)), *above] if text.strip() else above
        self._rules[folder.path] = found
        return found


def _is_ignored(
    rules: Sequence[tuple[str, GitignoreRules]], folder: str, name: str, kind: str
) -> bool:
    path = f"{folder}/{name}" if folder else name
    for above, folder_rules in rules:
        relative = path[len(above) :].lstrip("/")
        found = folder_rules.is_ignored(
            relative.encode(errors="surrogateescape"), folder=kind == "dir"
        )
        if found is not None:
            return found
    return False


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
            self.stopped = f"{MAX_ENTRIES:,} entries were visited"
        elif time.monotonic() > self._end:
            self.stopped = "the time limit was reached"
        return not self.stopped

    def is_expired(self) -> bool:
        """Whether the search has to end."""
        if time.monotonic() > self._end:
            self.stopped = "the time limit was reached"
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
