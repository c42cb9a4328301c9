"""`WorkspaceFiles`: reads files below the folders of a workspace; no link is followed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from evoclaw.executors.beneath import open_beneath
from evoclaw.executors.git_layout import MAX_GIT_TEXT_BYTES
from evoclaw.executors.workspace.snapshot import is_below

FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


class WorkspaceFiles:
    """The folders that sandboxed commands may change, real and absolute."""

    def __init__(self, roots: Iterable[str]) -> None:
        self.roots = tuple(dict.fromkeys(roots))

    def root_of(self, path: str) -> str:
        """The innermost of the folders that a path is in."""
        return max((root for root in self.roots if is_below(path, root)), key=len)

    def is_inside(self, path: str) -> bool:
        """Whether a path, with its links followed, is in one of the folders."""
        real = os.path.realpath(path)
        return any(is_below(real, root) for root in self.roots)

    def text(self, path: str) -> str | None:
        """What a plain file contains; None if it is none, or too long."""
        root = self.root_of(path)
        try:
            held = os.open(root, FOLDER_FLAGS)
            try:
                file = open_beneath(
                    held,
                    path[len(root) + 1 :],
                    os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW,
                    links=False,
                    mounts=True,
                )
            finally:
                os.close(held)
        except OSError:
            return None
        try:
            data = os.read(file, MAX_GIT_TEXT_BYTES + 1)
        except OSError:
            return None
        finally:
            os.close(file)
        return None if len(data) > MAX_GIT_TEXT_BYTES else data.decode(errors="replace")
