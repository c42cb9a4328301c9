"""`Survey`: scans a tree in one thread: each folder is opened beneath its root."""

from __future__ import annotations

import heapq
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import STATE_FOLDER
from evoclaw.executors.beneath import OPEN_FOLDER_FLAGS, open_beneath
from evoclaw.executors.file_walk import MAX_DEPTH, MAX_FOLDER_ENTRIES
from evoclaw.executors.roots import LocatedPath, Roots, explained

OPEN_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""NONBLOCK: opening a fifo would wait for a writer forever."""


class SurveyFolder:
    """A folder below the start, during its visit. It is open only while it is read."""

    def __init__(self, survey: Survey, inside: str) -> None:
        self._survey, self._inside = survey, inside
        self._descriptor = -1
        path = posixpath.normpath(posixpath.join(survey.shown, inside))
        self.path = "" if path == "." else path
        """As tools name it; empty for the workspace itself."""
        self.entries: Sequence[tuple[str, str]] = _entries(self._open())
        """The names and kinds of its entries, in sorted order."""

    def read(self, name: str, start: int, limit: int) -> bytes | None:
        """Read a regular file of this folder; None if it cannot be read."""
        if "/" in name:
            return None  # not in this folder
        try:
            file = os.open(name, OPEN_FILE_FLAGS, dir_fd=self._open())
        except OSError:
            return None
        try:
            if not self._survey.may_read(os.fstat(file)):
                return None
            return os.pread(file, limit, start) if start else os.read(file, limit)
        except OSError:
            return None
        finally:
            os.close(file)

    def modified_at(self, name: str) -> float:
        """When an entry was changed last."""
        try:
            return os.stat(name, dir_fd=self._open(), follow_symlinks=False).st_mtime
        except OSError:
            return 0.0

    def below(self, name: str) -> SurveyFolder | None:
        """A sub-folder; None if it was removed, is unreadable, or is another file system."""
        self.close()
        if len(self.path) + len(name) >= MAX_DEPTH:
            return None
        try:
            return SurveyFolder(self._survey, posixpath.join(self._inside, name))
        except OSError:
            return None

    def close(self) -> None:
        """Close the descriptor; reading opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        if self._descriptor < 0:
            self._descriptor = self._survey.open(self._inside)
        return self._descriptor


class Survey:
    """A scan of a tree."""

    def __init__(self, roots: Roots, start: LocatedPath, *, hard_links: bool) -> None:
        self._roots, self._start, self._hard_links = roots, start, hard_links
        self.shown = start.shown
        self._top = -1

    def run(
        self, visit: Callable[[SurveyFolder], Iterator[str]], abandoned: Callable[[], bool]
    ) -> None:
        """Visit every folder, until `abandoned` says that the caller stopped waiting."""
        stack: list[tuple[SurveyFolder, Iterator[str]]] = []
        try:
            self._top = self._roots.open(self._start, OPEN_FOLDER_FLAGS)
            first = SurveyFolder(self, "")
            stack.append((first, visit(first)))
            while stack and not abandoned():
                folder, work = stack[-1]
                name = next(work, None)
                if name is None:
                    folder.close()
                    stack.pop()
                elif (below := folder.below(name)) is not None:
                    stack.append((below, visit(below)))
        except NotADirectoryError:
            text = f"'{self.shown}' is not a folder."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text) from None
        except OSError as problem:
            raise explained(problem, self.shown) from None
        finally:
            for folder, _ in stack:
                folder.close()
            if self._top >= 0:
                os.close(self._top)

    def open(self, inside: str) -> int:
        """Open a folder below the start, by a path without links."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        return open_beneath(self._top, inside or ".", flags, links=False, mounts=self._roots.mounts)

    def may_read(self, about: os.stat_result) -> bool:
        """Whether it is a regular file, and has no second hard link unless those are allowed."""
        return stat.S_ISREG(about.st_mode) and (self._hard_links or about.st_nlink == 1)


def _entries(descriptor: int) -> list[tuple[str, str]]:
    with os.scandir(descriptor) as found:
        entries = ((entry.name, _kind(entry)) for entry in found if entry.name != STATE_FOLDER)
        first = list(islice(entries, MAX_FOLDER_ENTRIES))
        beyond = next(entries, None)
        if beyond is not None:
            return heapq.nsmallest(MAX_FOLDER_ENTRIES, chain(first, (beyond,), entries))
    first.sort()
    return first


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_file(follow_symlinks=False):
            return "file"
        if entry.is_dir(follow_symlinks=False):
            return "dir"
        return "link" if entry.is_symlink() else "other"
    except OSError:
        return "other"
