"""Scans a tree of local files in one thread, leaving out what `.gitignore` ignores.

A visitor is called for each folder and handles its entries in order; when it yields a sub-folder,
that one is scanned before the visitor continues. Files of other machines are walked entry by entry
instead: `tools.gitignore.walk_unignored`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from evoclaw.core.ops import FileOps
from evoclaw.tools.gitignore import MAX_GITIGNORE_BYTES, GitignoreMatcher, GitignoreRules

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
