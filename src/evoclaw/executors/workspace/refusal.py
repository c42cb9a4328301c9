"""Renames what a command left, so that nothing runs it; no link is followed."""

from __future__ import annotations

import os
import secrets
import stat

from evoclaw.executors.beneath import open_beneath
from evoclaw.executors.workspace.files import FOLDER_FLAGS, WorkspaceFiles

REFUSED_SUFFIX = ".refused-"


def refuse(path: str, files: WorkspaceFiles) -> str:
    """Rename what a command left, so that nothing runs it; what was done with it.

    No link in the path is followed.
    """
    suffix = f"{REFUSED_SUFFIX}{secrets.token_hex(3)}"
    with _parent_of(path, files) as (parent, name):
        kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            os.unlink(name, dir_fd=parent)
            return "removed"
        os.rename(name, name + suffix, src_dir_fd=parent, dst_dir_fd=parent)
        if stat.S_ISDIR(kind):
            _disable_repository(parent, name + suffix, suffix)
    return f"now {os.path.basename(path)}{suffix}"


def _disable_repository(parent: int, name: str, suffix: str) -> None:
    """Take the `HEAD` of a refused repository away, so that git does not find it there either."""
    folder = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    try:
        os.rename("HEAD", "HEAD" + suffix, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)


class _parent_of:
    """The descriptor of the folder of a path, and the last name of the path."""

    def __init__(self, path: str, files: WorkspaceFiles) -> None:
        root = files.root_of(path)
        self._root, (self._folder, self._name) = root, os.path.split(path[len(root) + 1 :])

    def __enter__(self) -> tuple[int, str]:
        root = os.open(self._root, FOLDER_FLAGS)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY
            self._held = open_beneath(root, self._folder or ".", flags, links=False, mounts=True)
        finally:
            os.close(root)
        return self._held, self._name

    def __exit__(self, *_: object) -> None:
        os.close(self._held)
