"""`FileWalk`: walks a tree of files in sorted order, off the event loop, with little memory."""

from __future__ import annotations

import asyncio
import heapq
import os
import posixpath
import stat
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import STATE_FOLDER, FileStat
from evoclaw.executors.beneath import OPEN_FOLDER_FLAGS, open_beneath
from evoclaw.executors.roots import LocatedPath, Roots, explained

BATCH_ENTRIES = 512
"""Files that are read in one thread call."""
MAX_FOLDER_ENTRIES = 200_000
"""Names kept of one folder; of a wider one, the first in sorted order."""
MAX_DEPTH = 4_000
"""Length of a path below which the walk stops: a tool could not name it."""


def kind_of(mode: int) -> str:
    """The `FileStat` kind for a file's mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


class FileWalk:
    """The files below a folder, as an async iterator.

    Nothing stays open between two steps, so a walk may be dropped at any time.
    """

    def __init__(self, roots: Roots, start: LocatedPath) -> None:
        self._roots, self._start = roots, start
        self._folders: list[tuple[str, Iterator[str]]] = []
        self._ready: deque[FileStat] = deque()
        self._entering: str | None = ""
        """Relative to the start: the folder to go into next."""

    def __aiter__(self) -> FileWalk:
        return self

    async def __anext__(self) -> FileStat:
        if not self._ready:
            self._ready.extend(await asyncio.to_thread(self._advance))
            if not self._ready:
                raise StopAsyncIteration
        return self._ready.popleft()

    def skip(self) -> None:
        """Do not go into the folder yielded last."""
        if not self._ready:
            self._entering = None

    def _advance(self) -> list[FileStat]:
        """The next batch; a folder ends it, so that it can be skipped. Empty at the end."""
        if self._entering is not None:
            folder, self._entering = self._entering, None
            self._folders.append((folder, self._list(folder)))
        found: list[FileStat] = []
        while self._folders and len(found) < BATCH_ENTRIES and self._entering is None:
            folder, names = self._folders[-1]
            if not self._look(folder, names, found):
                self._folders.pop()
            elif found[-1].kind == "dir" and len(found[-1].path) < MAX_DEPTH:
                self._entering = posixpath.join(folder, posixpath.basename(found[-1].path))
        return found

    def _open(self, folder: str, flags: int) -> int:
        start = self._roots.open(self._start, OPEN_FOLDER_FLAGS)
        try:
            return open_beneath(start, folder or ".", flags, links=False, mounts=self._roots.mounts)
        finally:
            os.close(start)

    def _list(self, folder: str) -> Iterator[str]:
        try:
            descriptor = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS, f"'{self._start.shown}' is not a folder."
            ) from None
        except OSError as problem:
            if not folder:
                raise explained(problem, self._start.shown) from None
            # Removed, unreadable, or another file system: nothing to list.
            return iter(())
        try:
            return iter(_sorted_names(descriptor))
        finally:
            os.close(descriptor)

    def _look(self, folder: str, names: Iterator[str], found: list[FileStat]) -> bool:
        """Add a folder's next files, up to a batch or a sub-folder; False if none is left."""
        name = next(names, None)
        if name is None:
            return False
        above = posixpath.normpath(posixpath.join(self._start.shown, folder))
        prefix = "" if above == "." else above.rstrip("/") + "/"
        try:
            descriptor = self._open(folder, OPEN_FOLDER_FLAGS)
        except OSError:
            return False
        before = len(found)
        try:
            for following in chain((name,), names):
                try:
                    about = os.stat(following, dir_fd=descriptor, follow_symlinks=False)
                except OSError:
                    continue
                kind = kind_of(about.st_mode)
                found.append(FileStat(prefix + following, kind, about.st_size, about.st_mtime))
                if kind == "dir" or len(found) >= BATCH_ENTRIES:
                    break
        finally:
            os.close(descriptor)
        return len(found) > before


def _sorted_names(descriptor: int) -> list[str]:
    with os.scandir(descriptor) as entries:
        names = (entry.name for entry in entries if entry.name != STATE_FOLDER)
        first = list(islice(names, MAX_FOLDER_ENTRIES))
        beyond = next(names, None)
        if beyond is None:
            return sorted(first)
        return heapq.nsmallest(MAX_FOLDER_ENTRIES, chain(first, (beyond,), names))
