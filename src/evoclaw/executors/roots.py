"""`Roots`: the folders that files may be in, and the root of a given path."""

from __future__ import annotations

import errno
import os
import posixpath
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import STATE_FOLDER
from evoclaw.executors.beneath import OPEN_FOLDER_FLAGS, open_beneath

MAX_PATH_BYTES = 4096
MAX_SEARCHED_NAMES = 1_000
"""For the name of a missing file; one that is about to be created is missing, too."""
MAX_SUGGESTED_PATHS = 3
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INVALID_PATH_ERRNOS = (
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.ENXIO,
    errno.ENODEV,
)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that may be read, and written if `writable`; or one file that may be read."""

    path: str
    """Absolute, links resolved; of a file: its folder."""
    spellings: tuple[str, ...]
    """The paths that name it: as configured, and resolved."""
    writable: bool
    file: str = ""
    """The name of the only file in the folder that belongs to the root; empty: all of them."""


@dataclass(frozen=True, slots=True)
class LocatedPath:
    """A path, split into its root and the rest."""

    root: Root
    inside: str
    """Relative to the root, as written: the kernel resolves links and `..`."""
    shown: str
    """Relative to the workspace when in it, else absolute."""

    @contextmanager
    def folder(self) -> Generator[int]:
        """The root, opened."""
        descriptor = os.open(self.root.path, OPEN_FOLDER_FLAGS)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


class Roots:
    """The workspace and whatever else is allowed."""

    def __init__(
        self,
        workspace: str | Path,
        *,
        readable: Iterable[str | Path] = (),
        writable: Iterable[str | Path] = (),
        mounts: bool = False,
        closed: bool = True,
    ) -> None:
        """Set the roots; `closed` denies access to our own state folder below a root."""
        self.workspace = _root(workspace, writable=True)
        self.mounts, self._closed = mounts, closed
        self._all = (
            self.workspace,
            *(_root(path, writable=True) for path in writable),
            *(_root(path, writable=False) for path in readable),
        )

    def locate(self, path: str, *, write: bool = False) -> LocatedPath:
        """Locate a path; refuse one that is invalid or in no root."""
        check_path(path)
        if not path.startswith("/"):
            self._check_closed(path, path)
            return LocatedPath(self.workspace, path, posixpath.normpath(path))
        for root in self._all:
            inside = _inside(root, path)
            if inside is None:
                continue
            self._check_closed(path, inside)
            if write and not root.writable:
                raise ToolFailure(
                    ErrorKind.PERMISSION_DENIED,
                    f"'{path}' is in a read-only folder. Write inside the workspace.",
                )
            if root is self.workspace:
                return LocatedPath(root, inside, posixpath.normpath(inside))
            return LocatedPath(root, inside, posixpath.normpath(posixpath.join(root.path, inside)))
        raise outside(path)

    def _check_closed(self, path: str, inside: str) -> None:
        """Refuse a path into our state folder: tools must not see keys, approvals and stops."""
        if self._closed and STATE_FOLDER in inside.casefold().split("/"):
            raise ToolFailure(
                ErrorKind.PERMISSION_DENIED,
                f"'{path}' is protected: EvoClaw's own keys and settings are there. "
                "Continue without it.",
            )

    def open(self, place: LocatedPath, flags: int, *, links: bool = True) -> int:
        """Open a located path; `OSError` if that fails or would leave the root."""
        # A file that is named may be a mount point, as /etc/hostname is in containers.
        mounts = self.mounts or bool(place.root.file)
        with place.folder() as folder:
            return open_beneath(folder, place.inside, flags, links=links, mounts=mounts)

    def real_folder(self, path: str) -> str:
        """The resolved path of a folder in a root, for a process to start in."""
        located = self.locate(path)
        try:
            descriptor = self.open(located, OPEN_FOLDER_FLAGS)
        except OSError as problem:
            raise explained(problem, path) from None
        try:
            return str(Path(f"/proc/self/fd/{descriptor}").readlink())
        finally:
            os.close(descriptor)

    def near(self, place: LocatedPath) -> list[str]:
        """The paths that may have been meant: the same name below, or one like it in the folder."""
        folder, _, name = place.inside.rstrip("/").rpartition("/")
        if name.startswith(".") or place.root.file:
            # Such as .gitignore: looked for in every folder, not misspelt.
            return []
        return self._same_name(place.root, name) or self._like(place, folder, name)

    def _same_name(self, root: Root, name: str) -> list[str]:
        """Where else in a root the name is, in the folders that are reached first."""
        found: list[str] = []
        folders, left, device = deque(["."]), MAX_SEARCHED_NAMES, None
        while folders and left > 0 and len(found) < MAX_SUGGESTED_PATHS:
            path = folders.popleft()
            try:
                opened = self.open(LocatedPath(root, path, path), os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # removed meanwhile, or not ours to read
                continue
            try:
                at = os.fstat(opened).st_dev
                device = at if device is None else device
                if at != device:
                    continue
                with os.scandir(opened) as entries:
                    read = sorted(islice(entries, left), key=lambda entry: entry.name)
                left -= len(read)
                for entry in read:
                    inside = posixpath.normpath(posixpath.join(path, entry.name))
                    if entry.name == name:
                        found.append(inside)
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        folders.append(inside)
            finally:
                os.close(opened)
        if root is not self.workspace:
            found = [posixpath.join(root.path, path) for path in found]
        return found[:MAX_SUGGESTED_PATHS]

    def _like(self, place: LocatedPath, folder: str, name: str) -> list[str]:
        """Names like this one, in the same folder."""
        # Imported here: an idle edge need not spend the memory.
        from difflib import get_close_matches

        above = LocatedPath(place.root, folder or ".", place.shown)
        try:
            descriptor = self.open(above, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return []
        try:
            with os.scandir(descriptor) as entries:
                names = [entry.name for entry in islice(entries, 1000)]
        finally:
            os.close(descriptor)
        found = get_close_matches(name, names, n=MAX_SUGGESTED_PATHS)
        return [posixpath.join(posixpath.dirname(place.shown), match) for match in found]


def _root(path: str | Path, *, writable: bool) -> Root:
    absolute = Path(path).absolute()
    try:
        real = absolute.resolve(strict=True)
    except OSError as problem:
        raise ConfigError(f"folder {str(absolute)!r} cannot be used: {problem.strerror}") from None
    spellings = str(real), str(absolute)
    if real.is_file() and not writable:
        return Root(str(real.parent), spellings, writable, real.name)
    if not real.is_dir():
        raise ConfigError(f"{str(absolute)!r} is not a folder")
    return Root(str(real), spellings, writable)


def _inside(root: Root, path: str) -> str | None:
    for spelling in root.spellings:
        if path == spelling:
            return root.file or "."
        if root.file:
            continue
        prefix = spelling.rstrip("/") + "/"
        if path.startswith(prefix):
            return path[len(prefix) :].lstrip("/") or "."
    return None


def check_path(path: str) -> None:
    """Refuse an invalid path; everything else is taken literally, `~` and `$HOME` too."""
    problem = None
    if not path:
        problem = "is empty"
    elif "\0" in path:
        problem = "contains a NUL character"
    elif len(path) > MAX_PATH_BYTES:
        problem = f"is longer than {MAX_PATH_BYTES} characters"
    else:
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            problem = "is not valid text"
    if problem:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, f"The path {problem}. Give a path inside the workspace."
        )


def outside(path: str) -> ToolFailure:
    """The refusal of a path that leaves every allowed folder."""
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"'{path}' is outside the workspace, or a link or mount in it leads outside. "
        "Use a path inside the workspace, relative to it.",
    )


def explained(problem: OSError, path: str, near: Iterable[str] = ()) -> ToolFailure:
    """The error for the model when the system refused access."""
    code = problem.errno
    reason = problem.strerror or str(problem)
    if code == errno.EXDEV:
        return outside(path)
    if code == errno.ENOENT:
        guess = ", ".join(f"'{path}'" for path in near)
        hint = f"Did you mean {guess}?" if guess else "List the folder to see what there is."
        return ToolFailure(ErrorKind.NOT_FOUND, f"'{path}' does not exist. {hint}")
    if code == errno.ELOOP:
        return ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"'{path}' is a link or goes through one. Use the path of the real file.",
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ToolFailure(
            ErrorKind.PERMISSION_DENIED, f"'{path}' may not be used: {reason}. Explain to the user."
        )
    if code in DISK_FULL_ERRNOS:
        return ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"'{path}' could not be written, and nothing was changed: {reason}. "
            "Free some space or explain to the user.",
        )
    kind = ErrorKind.INVALID_PARAMS if code in INVALID_PATH_ERRNOS else ErrorKind.EXECUTION_FAILED
    return ToolFailure(kind, f"'{path}' could not be used: {reason}.")
