"""`WorkspaceScanner`: finds what programs run or obey by themselves in a workspace.

The first scan reads every folder. A folder whose change time (ctime, which no command can set) is
the same has the same names in it: later scans ask each known folder for its change time, and read
only those again that changed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from evoclaw.core.errors import ConfigError
from evoclaw.executors.workspace.files import FOLDER_FLAGS, WorkspaceFiles
from evoclaw.executors.workspace.folders import FolderIndex, FolderListing
from evoclaw.executors.workspace.named_files import NamedFiles, owners_settings
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

REFUSAL_RETENTION_S = 30.0
"""For how long a workspace that was too large is not scanned again."""
GONE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(slots=True)
class _Update:
    """One scan of the index."""

    before: WorkspaceSnapshot | None
    max_folders: int | None
    todo: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Folders to read, with role and repository above."""
    unreadable: dict[str, Signature | None] = field(default_factory=dict[str, Signature | None])


class WorkspaceScanner:
    """Scans the folders that sandboxed commands may change."""

    def __init__(self, files: WorkspaceFiles, named: NamedFiles, hidden: Iterable[str]) -> None:
        """Set the folders, and those in them that commands cannot see."""
        self._files, self._named = files, named
        self._skipped = frozenset((*hidden, *files.roots))
        self._index = FolderIndex()
        self._refuse_until = 0.0

    def scan(
        self,
        before: WorkspaceSnapshot | None,
        created: Set[str] = frozenset(),
        max_folders: int | None = None,
    ) -> WorkspaceSnapshot:
        """What is in the folders now.

        Args:
            before: A scan before a command: a folder that the command made unreadable for us is
                made readable again.
            created: Repositories that commands created.
            max_folders: How many folders may be scanned; None: all, as after a command.

        Raises:
            ConfigError: There are more.
        """
        if max_folders is not None and time.monotonic() < self._refuse_until:
            raise self._too_large(max_folders)
        update = _Update(before, max_folders)
        self._update_index(update)
        entries: dict[str, SensitiveEntry] = {}
        for folder in sorted(self._index.sensitive):
            self._read_entries(folder, entries, update)
        found = WorkspaceSnapshot(
            entries,
            frozenset(self._index.repositories),
            self._index.share_signatures(),
            update.unreadable,
        )
        self._read_settings(found, created)
        return found

    def _update_index(self, update: _Update) -> None:
        """Read the folders that are new, changed, or could not be read before."""
        index = self._index
        todo = [(folder, *known) for folder, known in index.unreadable.items()]
        todo += [(root, TREE, "") for root in self._files.roots if root not in index]
        for folder in index.changed():
            # It may have been dropped with the folder above it.
            if (known := index.listings.get(folder)) is not None:
                self._read_folder(folder, known.role, known.above, update)
        update.todo += todo
        while update.todo:
            self._read_folder(*update.todo.pop(), update)
        self._check_size(update)

    def _check_size(self, update: _Update) -> None:
        if update.max_folders is not None and self._index.size > update.max_folders:
            # The rest was not read: the next scan starts again.
            self._index = FolderIndex()
            self._refuse_until = time.monotonic() + REFUSAL_RETENTION_S
            raise self._too_large(update.max_folders)

    def _too_large(self, max_folders: int) -> ConfigError:
        return ConfigError(
            f"the workspace '{self._files.roots[0]}' has more than {max_folders:,} folders, which "
            "must all be checked after each command. Start EvoClaw in a project folder, "
            "or raise max_folders in [sandbox]"
        )

    def _read_folder(self, folder: str, role: str, above: str, update: _Update) -> None:
        """Read a folder; those in it that are new to the index are left to do."""
        index, known = self._index, self._index.listings.get(folder)
        try:
            signature, read_ns, listing = self._readable_listing(folder, role, above, update.before)
        except OSError as problem:
            index.drop(folder)
            if problem.errno not in GONE_ERRNOS:
                self._set_unreadable(folder, role, above, update)
            return
        if known is not None and known[:3] != listing[:3]:
            # All that is below has other roles, or belongs to another repository.
            index.drop(folder)
            known = None
        index.put(folder, signature, read_ns, listing)
        self._check_size(update)
        # A folder in it that is known and changed, or gone, is found by its own change time.
        roles = dict(known.folders) if known is not None else {}
        for name, inner in listing.folders:
            path = f"{folder}/{name}"
            is_known = roles.get(name) == inner and path in index
            if not is_known and path not in self._skipped:
                update.todo.append((path, inner, listing.repository(folder)))

    def _set_unreadable(self, folder: str, role: str, above: str, update: _Update) -> None:
        self._index.unreadable[folder] = (role, above)
        update.unreadable[folder] = signature_if_seen(folder)

    def _read_entries(
        self, folder: str, entries: dict[str, SensitiveEntry], update: _Update
    ) -> None:
        listing = self._index.listings.get(folder)
        if listing is None:
            return
        try:
            entries.update(_sensitive(folder, listing))
        except OSError as problem:
            self._index.drop(folder)
            if problem.errno not in GONE_ERRNOS:
                self._set_unreadable(folder, listing.role, listing.above, update)

    def _read_settings(self, found: WorkspaceSnapshot, created: Set[str]) -> None:
        for path, entry in found.entries.items():
            if entry.kind == "git" and os.path.basename(path) in ("config", "config.worktree"):
                found.settings[path] = self._files.text(path) or ""
        owners = owners_settings()
        for repository in found.repositories - created:
            work_tree = repository.removesuffix("/.git")
            for path in self._named.named_by(repository, work_tree, owners):
                if (signature := signature_of(path)) is not None:
                    found.named[path] = signature

    def _readable_listing(
        self, folder: str, role: str, above: str, before: WorkspaceSnapshot | None
    ) -> tuple[Signature, int, FolderListing]:
        try:
            found = _read(folder, role, above)
            # Listed, but nothing in it can be looked at.
            for name, _ in found[2].entries[:1]:
                signature_of(f"{folder}/{name}")
        except PermissionError:
            if before is None or before.unreadable.get(folder, ()) == signature_if_seen(folder):
                raise
            self._make_readable(folder)
            return _read(folder, role, above)
        return found

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


def _read(folder: str, role: str, above: str) -> tuple[Signature, int, FolderListing]:
    """The signature of a folder, when it was read, and what is of interest in it.

    All by one descriptor: a running command may put another folder in its place meanwhile, and a
    signature kept with the names of another folder would hide what is in it from every later scan.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        read_ns = time.time_ns()
        seen = os.fstat(held)
        with os.scandir(held) as scanned:
            kinds = {entry.name: kind_of(entry) for entry in scanned}
    finally:
        os.close(held)
    repository = role == GIT or (role in (TREE, BARE, NESTED) and is_repository(kinds))
    folders: list[tuple[str, str]] = []
    entries: list[tuple[str, str]] = []
    own_name = os.path.basename(folder)
    for name, kind in kinds.items():
        inner, sensitive = roles_of(own_name, role, repository, name, kind)
        if sensitive:
            entries.append((name, sensitive))
        if inner and kind == "folder":
            folders.append((name, inner))
    listing = FolderListing(role, above, repository, tuple(folders), tuple(entries))
    return (seen.st_dev, seen.st_ino, seen.st_ctime_ns), read_ns, listing


def _sensitive(folder: str, listing: FolderListing) -> Iterator[tuple[str, SensitiveEntry]]:
    repository = listing.repository(folder)
    for name, kind in listing.entries:
        path = f"{folder}/{name}"
        if (signature := signature_of(path)) is not None:
            yield path, SensitiveEntry(signature, kind, repository)
