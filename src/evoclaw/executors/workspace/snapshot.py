"""What one scan of a workspace found, and the paths it speaks of."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Signature = tuple[int, ...]


class SensitiveEntry(NamedTuple):
    """A path that programs run or obey by themselves."""

    signature: Signature
    """What changes when it is replaced or written."""
    kind: str
    """`name`: protected by its name; `git`: decided by its content; `link`: not a plain file in a
    repository; else it is never harmless."""
    repository: str = ""
    """The folder of the repository that it belongs to."""


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """What was found in one scan."""

    entries: dict[str, SensitiveEntry] = field(default_factory=dict[str, SensitiveEntry])
    """By path."""
    repositories: frozenset[str] = frozenset()
    """The folders that git takes for a repository (`.git` and others)."""
    folders: dict[str, Signature] = field(default_factory=dict[str, Signature])
    unreadable: dict[str, Signature | None] = field(default_factory=dict[str, Signature | None])
    """Folders that could not be listed."""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    """The texts of git's configuration files."""
    named: dict[str, Signature] = field(default_factory=dict[str, Signature])
    """Existing files that the owner's git settings make git run or read."""

    def identity(self, path: str) -> Signature | None:
        """Device and inode of a path; None if it was not found."""
        if (entry := self.entries.get(path)) is not None:
            return entry.signature[:2]
        known = self.folders.get(path) or self.named.get(path)
        return None if known is None else known[:2]


def signature_of(path: str) -> Signature | None:
    """What changes when a path is replaced or written; None if there is nothing."""
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(seen.st_mode):
        # What is in a folder has signatures of its own.
        return seen.st_dev, seen.st_ino, seen.st_mode
    return seen.st_dev, seen.st_ino, seen.st_ctime_ns, seen.st_size, seen.st_mode


def signature_if_seen(folder: str) -> Signature | None:
    """Device, inode and change time of a folder; None if it cannot be looked at."""
    try:
        seen = os.lstat(folder)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_ctime_ns


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def parents_of(path: str) -> Iterator[str]:
    """The folders above a path, the nearest first."""
    while (path := os.path.dirname(path)) not in ("", "/"):
        yield path


def folders_above(path: str, roots: Iterable[str]) -> Iterator[str]:
    """The folders above a path, up to but without the root."""
    for parent in parents_of(path):
        if parent in roots:
            return
        yield parent
