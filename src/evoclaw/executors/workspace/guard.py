"""`WorkspaceGuard`: no command leaves a file that the owner's own programs run by themselves.

Before a command, the sandbox mounts what it must not change read-only. But git must create files
in its folder, and a file that does not exist cannot be mounted: so after a command the whole
workspace is scanned, and what is new or changed and not known to be harmless is renamed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from evoclaw.executors.workspace.files import WorkspaceFiles
from evoclaw.executors.workspace.judgement import WorkspaceJudge
from evoclaw.executors.workspace.mounts import ReadOnlyMounts
from evoclaw.executors.workspace.named_files import NamedFiles
from evoclaw.executors.workspace.refusal import refuse
from evoclaw.executors.workspace.scan import WorkspaceScanner
from evoclaw.executors.workspace.snapshot import WorkspaceSnapshot


class WorkspaceGuard:
    """Scans the folders that sandboxed commands may change, and judges what a command left."""

    def __init__(self, roots: Iterable[str], hidden: Iterable[str] = ()) -> None:
        """Set the folders, real and absolute, and those in them that commands cannot see."""
        self._files = WorkspaceFiles(roots)
        named = NamedFiles(self._files)
        self._scanner = WorkspaceScanner(self._files, named, hidden)
        self._judge = WorkspaceJudge(self._files, named)
        self._mounts = ReadOnlyMounts(self._files)
        self._lock = threading.Lock()

    def scan(
        self, before: WorkspaceSnapshot | None = None, *, max_folders: int | None = None
    ) -> WorkspaceSnapshot:
        """What is in the folders now.

        Args:
            before: A scan before a command. A folder that the command made unreadable for us is
                made readable again.
            max_folders: How many folders may be scanned; None: all, as after a command.

        Raises:
            ConfigError: There are more.
        """
        with self._lock:
            return self._scanner.scan(before, self._judge.created, max_folders)

    def protected(self, snapshot: WorkspaceSnapshot) -> tuple[str, ...]:
        """The paths that the next command may not change: what its sandbox mounts read-only."""
        with self._lock:
            self._judge.keep_created(snapshot)
            return self._mounts.protected(snapshot, self._judge.created)

    def planted(
        self, before: WorkspaceSnapshot, after: WorkspaceSnapshot, mounted: Iterable[str]
    ) -> list[str]:
        """What is new or changed since a command started and not known to be harmless."""
        with self._lock:
            return self._judge.planted(before, after, mounted)

    def is_urgent(self, path: str, before: WorkspaceSnapshot, after: WorkspaceSnapshot) -> bool:
        """Whether the owner's programs may run it at once: not if its folder is new to them too."""
        entry = after.entries.get(path)
        return entry is None or entry.kind != "name" or os.path.dirname(path) in before.folders

    def refuse(self, path: str) -> str:
        """Rename what a command left, so that nothing runs it; what was done with it."""
        return refuse(path, self._files)

    def relative(self, path: str) -> str:
        """The path as the user knows it: from the workspace, or absolute."""
        return path.removeprefix(self._files.roots[0] + "/")
