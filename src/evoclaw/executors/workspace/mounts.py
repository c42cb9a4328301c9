"""Which paths of a workspace a sandbox mounts read-only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Set
from contextlib import suppress

from evoclaw.executors.git_layout import GIT_EMPTY_FOLDERS, REBASE_STEPS_FILE
from evoclaw.executors.workspace.files import WorkspaceFiles
from evoclaw.executors.workspace.snapshot import SensitiveEntry, WorkspaceSnapshot, folders_above

MAX_MOUNT_DEPTH = 4
"""Protected paths in deeper folders are checked after a command, not mounted read-only."""
MAX_PROTECTED_PATHS = 400
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", ".venv", "venv", ".tox", "site-packages"}
)
"""Folders of installed packages: what is in them is checked, not mounted read-only."""


class ReadOnlyMounts:
    """Chooses the paths that the next command may not change."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files

    def protected(self, snapshot: WorkspaceSnapshot, created: Set[str]) -> tuple[str, ...]:
        """The paths to mount; what is in `created` was created by commands, which may change it."""
        found: dict[str, None] = {}
        for path, entry in snapshot.entries.items():
            if not self._is_mountable(path, entry, created):
                continue
            parent = os.path.dirname(path)
            in_hooks = os.path.basename(parent) in ("hooks", *GIT_EMPTY_FOLDERS)
            found[parent if entry.repository and in_hooks else path] = None
        for repository in snapshot.repositories:
            if repository not in created and self._is_near(repository):
                found |= dict.fromkeys(_held_places(repository))
        found |= dict.fromkeys(path for path in snapshot.named if self._is_near(path))
        outermost = [
            path
            for path in sorted(found)
            if not any(above in found for above in folders_above(path, self._files.roots))
        ]
        return tuple(sorted(outermost, key=lambda path: path.count("/"))[:MAX_PROTECTED_PATHS])

    def _is_mountable(self, path: str, entry: SensitiveEntry, created: Set[str]) -> bool:
        if entry.kind == "link" or os.path.islink(path) or not self._is_near(path):
            return False
        if path in created or entry.repository in created:
            return False
        if any(f"{above}/.git" in created for above in folders_above(path, self._files.roots)):
            return False
        # `git worktree remove` and `move` must be able to change these.
        return os.path.basename(path) not in ("commondir", "gitdir", REBASE_STEPS_FILE)

    def _is_near(self, path: str) -> bool:
        """Whether it is mounted: not in a very deep folder, nor in an installed package."""
        root = self._files.root_of(path)
        parts = path[len(root) :].strip("/").split("/")[:-1]
        if ".git" in parts:
            parts = parts[: parts.index(".git")]
        return len(parts) <= MAX_MOUNT_DEPTH and not SKIPPED_FOLDERS.intersection(parts)


def _held_places(repository: str) -> Iterator[str]:
    """Paths in the owner's repository that are created empty so that they can be mounted."""
    try:
        held = os.open(repository, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if repository.endswith("/.git"):
            # As git itself creates it; without it there is nothing to mount over.
            with suppress(OSError):
                os.mkdir("hooks", 0o755, dir_fd=held)
        if stat.S_ISDIR(os.stat("hooks", dir_fd=held, follow_symlinks=False).st_mode):
            yield f"{repository}/hooks"
    except OSError:
        return
    finally:
        os.close(held)
