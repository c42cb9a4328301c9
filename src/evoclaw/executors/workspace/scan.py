"""`WorkspaceScanner`: finds what programs run or obey by themselves in a workspace.

A folder whose change time (ctime, which no command can set) is the same has the same names in it:
only changed folders are read again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from evoclaw.executors.workspace.files import FOLDER_FLAGS, WorkspaceFiles
from evoclaw.executors.workspace.named_files import NamedFiles
from evoclaw.executors.workspace.roles import (
    BARE,
    GIT,
    NESTED,
    TREE,
    is_repository,
    kind_of,
    roles_of,
)
from evoclaw.executors.workspace.snapshot import (
    SensitiveEntry,
    Signature,
    WorkspaceSnapshot,
    signature_if_seen,
    signature_of,
)

RACY_NS = 2_000_000_000
"""A folder that changed this shortly before it was read may have changed again unnoticed."""


class _Listing(NamedTuple):
    """What is of interest in a folder."""

    signature: Signature
    read_ns: int
    folders: tuple[tuple[str, str], ...]
    """Name and role."""
    entries: tuple[tuple[str, str], ...]
    """Name and kind."""
    repository: bool


class WorkspaceScanner:
    """Scans the folders that sandboxed commands may change."""

    def __init__(self, files: WorkspaceFiles, named: NamedFiles, hidden: Iterable[str]) -> None:
        """Set the folders, and those in them that commands cannot see."""
        self._files, self._named = files, named
        self._hidden = frozenset(hidden)
        self._listings: dict[tuple[str, str], _Listing] = {}

    def scan(
        self, before: WorkspaceSnapshot | None, created: Set[str] = frozenset()
    ) -> WorkspaceSnapshot:
        """What is in the folders now; what is in `created` was created by commands."""
        found = WorkspaceSnapshot()
        listings: dict[tuple[str, str], _Listing] = {}
        todo = [(root, TREE, "") for root in self._files.roots]
        while todo:
            folder, role, repository = todo.pop()
            try:
                listing = self._readable_listing(folder, role, before)
                repository = folder if listing.repository else repository
                found.entries.update(_sensitive(folder, listing, repository))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                found.unreadable[folder] = signature_if_seen(folder)
                continue
            listings[folder, role] = listing
            found.folders[folder] = listing.signature
            if listing.repository:
                found.repositories[folder] = True
            for name, inner in listing.folders:
                path = f"{folder}/{name}"
                if path not in self._hidden and path not in self._files.roots:
                    todo.append((path, inner, repository))
        self._listings = listings
        self._read_settings(found, created)
        return found

    def _read_settings(self, found: WorkspaceSnapshot, created: Set[str]) -> None:
        for path, entry in found.entries.items():
            if entry.kind == "git" and os.path.basename(path) in ("config", "config.worktree"):
                found.settings[path] = self._files.text(path) or ""
        for repository in found.repositories.keys() - created:
            work_tree = repository.removesuffix("/.git")
            for path in self._named.named_by(repository, work_tree):
                if (signature := signature_of(path)) is not None:
                    found.named[path] = signature

    def _readable_listing(
        self, folder: str, role: str, before: WorkspaceSnapshot | None
    ) -> _Listing:
        try:
            listing = self._listing(folder, role)
            # Listed, but nothing in it can be looked at.
            for name, _ in listing.entries[:1]:
                signature_of(f"{folder}/{name}")
        except PermissionError:
            if before is None or before.unreadable.get(folder, ()) == signature_if_seen(folder):
                raise
            self._make_readable(folder)
            return self._listing(folder, role)
        return listing

    def _make_readable(self, folder: str) -> None:
        """Allow our user to read a folder and those above it; no link is followed."""
        root = self._files.root_of(folder)
        held = os.open(root, FOLDER_FLAGS)
        try:
            for name in folder[len(root) + 1 :].split("/"):
                held, above = os.open(name, FOLDER_FLAGS, dir_fd=held), held
                os.close(above)
                mode = os.fstat(held).st_mode
                if mode & 0o700 != 0o700:
                    # Through /proc: this kind of descriptor cannot be used itself.
                    os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | 0o700)
        finally:
            os.close(held)

    def _listing(self, folder: str, role: str) -> _Listing:
        seen = os.lstat(folder)
        if not stat.S_ISDIR(seen.st_mode):
            raise FileNotFoundError(folder)
        signature = (seen.st_dev, seen.st_ino, seen.st_ctime_ns)
        known = self._listings.get((folder, role))
        if (
            known is not None
            and known.signature == signature
            and known.read_ns - seen.st_ctime_ns > RACY_NS
        ):
            return known
        now = time.time_ns()
        with os.scandir(folder) as scanned:
            kinds = {entry.name: kind_of(entry) for entry in scanned}
        repository = role == GIT or (role in (TREE, BARE, NESTED) and is_repository(kinds))
        folders: list[tuple[str, str]] = []
        entries: list[tuple[str, str]] = []
        for name, kind in kinds.items():
            inner, sensitive = roles_of(os.path.basename(folder), role, repository, name, kind)
            if sensitive:
                entries.append((name, sensitive))
            if inner and kind == "folder":
                folders.append((name, inner))
        return _Listing(signature, now, tuple(folders), tuple(entries), repository)


def _sensitive(
    folder: str, listing: _Listing, repository: str
) -> Iterator[tuple[str, SensitiveEntry]]:
    for name, kind in listing.entries:
        path = f"{folder}/{name}"
        if (signature := signature_of(path)) is not None:
            yield path, SensitiveEntry(signature, kind, repository)
