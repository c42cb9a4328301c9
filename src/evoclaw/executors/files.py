"""`LocalFiles`: the files of this machine, contained in the workspace and other allowed folders."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import FileStat
from evoclaw.executors.beneath import OPEN_FOLDER_FLAGS, open_beneath
from evoclaw.executors.file_survey import Survey, SurveyFolder
from evoclaw.executors.file_walk import FileWalk, kind_of
from evoclaw.executors.protected_paths import check_not_protected
from evoclaw.executors.roots import LocatedPath, Roots, explained, outside

MAX_READ_BYTES = 64 << 20
"""The most bytes that one read returns."""


class LocalFiles:
    """Files of this machine.

    Everything blocking runs in a thread. Links are followed only when reading, and only as long
    as they stay inside; a write replaces the directory entry and a removal deletes it, so neither
    ever reaches another file through a symbolic or a hard link.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        readable: Iterable[str | Path] = (),
        writable: Iterable[str | Path] = (),
        mounts: bool = False,
        hard_links: bool = True,
        protect: bool = True,
    ) -> None:
        """Set which files may be accessed.

        Args:
            root: The workspace; relative paths start here.
            readable: Further folders and files, for reading, by absolute path.
            writable: Further folders, for reading and writing, by absolute path.
            mounts: Whether file systems mounted inside a root belong to it.
            hard_links: Whether a file with a second name, perhaps outside, may be read.
            protect: Whether hooks, profiles and our own settings are write-protected.
        """
        self.roots = Roots(
            root, readable=readable, writable=writable, mounts=mounts, closed=protect
        )
        self._hard_links, self._protect = hard_links, protect

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a regular file from byte `start`."""
        return await asyncio.to_thread(self._read, path, start, limit)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a regular file atomically; create its folders; set or keep its mode."""
        abandoned = threading.Event()
        try:
            await asyncio.to_thread(self._write, path, data, abandoned, mode)
        except asyncio.CancelledError:
            # The thread cannot be stopped, but it checks this event before the rename.
            abandoned.set()
            raise

    async def remove(self, path: str) -> None:
        """Delete a regular file; a link is refused, and its folder stays, empty or not."""
        abandoned = threading.Event()
        try:
            await asyncio.to_thread(self._remove, path, abandoned)
        except asyncio.CancelledError:
            abandoned.set()
            raise

    async def stat(self, path: str) -> FileStat:
        """Stat one file; links inside the root are followed."""
        return await asyncio.to_thread(self._stat, path)

    def walk(self, path: str = ".") -> FileWalk:
        """Yield what is below a folder in sorted order; links are yielded, never followed.

        Folders are yielded before what is in them; `skip()` leaves out the one yielded last.
        """
        return FileWalk(self.roots, self.roots.locate(path))

    async def scan_tree(self, path: str, visit: Callable[[SurveyFolder], Iterator[str]]) -> None:
        """Visit this folder and every folder below it, in a thread; raise what the visitor raises.

        A visitor works on a folder's entries in order, and yields the sub-folders to go into.
        """
        survey = Survey(self.roots, self.roots.locate(path), hard_links=self._hard_links)
        abandoned = threading.Event()
        try:
            await asyncio.to_thread(survey.run, visit, abandoned.is_set)
        except asyncio.CancelledError:
            abandoned.set()
            raise

    def _open(self, path: str, flags: int) -> tuple[int, LocatedPath]:
        located = self.roots.locate(path)
        try:
            return self.roots.open(located, flags), located
        except OSError as problem:
            near = self.roots.near(located) if problem.errno == errno.ENOENT else ()
            raise explained(problem, path, near) from None

    def _read(self, path: str, start: int, limit: int | None) -> bytes:
        # NONBLOCK: opening a fifo would wait for a writer forever.
        descriptor, _ = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            about = os.fstat(descriptor)
            self._regular(path, about)
            length = max(0, about.st_size - start) if limit is None else limit
            if length > MAX_READ_BYTES:
                raise ToolFailure(
                    ErrorKind.TOO_LARGE,
                    f"'{path}' has {about.st_size:,} bytes, too many to read at once. "
                    "Read a part of it, or search it with grep.",
                )
            return _read_all(descriptor, start, length, whole=limit is None)
        except OSError as problem:
            raise explained(problem, path) from None
        finally:
            os.close(descriptor)

    def _regular(self, path: str, about: os.stat_result) -> None:
        kind = kind_of(about.st_mode)
        if kind == "dir":
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS, f"'{path}' is a folder. List it to see what is in it."
            )
        if kind != "file":
            raise ToolFailure(
                ErrorKind.PERMISSION_DENIED,
                f"'{path}' is a pipe, socket or device, not a file. It cannot be used.",
            )
        if about.st_nlink > 1 and not self._hard_links:
            raise outside(path)

    def _stat(self, path: str) -> FileStat:
        descriptor, located = self._open(path, os.O_PATH)
        try:
            about = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return FileStat(
            located.shown,
            kind_of(about.st_mode),
            about.st_size,
            about.st_mtime,
            stat.S_IMODE(about.st_mode),
        )

    def _write(
        self, path: str, data: bytes, abandoned: threading.Event, mode: int | None = None
    ) -> None:
        located, above, name = self._named(path)
        try:
            folder = self._reach(located, above, make=True)
            try:
                self._replace(folder, name, data, path, mode, abandoned)
            finally:
                os.close(folder)
        except OSError as problem:
            raise explained(problem, path) from None

    def _remove(self, path: str, abandoned: threading.Event) -> None:
        located, above, name = self._named(path)
        try:
            folder = self._reach(located, above, make=False)
            try:
                if self._present(folder, name, path) is None:
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                if abandoned.is_set():
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                os.unlink(name, dir_fd=folder)
                _sync_folder(folder)
            finally:
                os.close(folder)
        except OSError as problem:
            near = self.roots.near(located) if problem.errno == errno.ENOENT else ()
            raise explained(problem, path, near) from None

    def _named(self, path: str) -> tuple[LocatedPath, str, str]:
        """A path to be changed, as its root, the folders below that, and the file name."""
        located = self.roots.locate(path, write=True)
        # No links are followed, so resolving `..` textually equals walking it.
        inside = posixpath.normpath(located.inside)
        if inside == ".." or inside.startswith("../"):
            raise outside(path)
        above, name = posixpath.split(inside)
        if path.endswith("/") or name in ("", "."):
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS, f"'{path}' names a folder. Add the file's name."
            )
        if self._protect:
            check_not_protected(path, inside)
        return located, above, name

    def _reach(self, place: LocatedPath, above: str, *, make: bool) -> int:
        """Open the folder of a file without following links; create it if asked to."""
        with place.folder() as root:
            here = os.open(".", OPEN_FOLDER_FLAGS, dir_fd=root)
            for name in above.split("/") if above else []:
                try:
                    try:
                        below = self._enter(here, name)
                    except FileNotFoundError:
                        if not make:
                            raise
                        _make_folder(here, name)
                        below = self._enter(here, name)
                finally:
                    os.close(here)
                here = below
            return here

    def _present(self, folder: int, name: str, path: str) -> os.stat_result | None:
        """The existing file, if any; refuse one that may not be changed."""
        old = _look(folder, name)
        if old is not None and stat.S_ISLNK(old.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if old is not None:
            self._regular(path, old)
        return old

    def _enter(self, folder: int, name: str) -> int:
        return open_beneath(folder, name, OPEN_FOLDER_FLAGS, links=False, mounts=self.roots.mounts)

    def _replace(
        self,
        folder: int,
        name: str,
        data: bytes,
        path: str,
        mode: int | None,
        abandoned: threading.Event,
    ) -> None:
        old = self._present(folder, name, path)
        draft = f".evoclaw-{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o666, dir_fd=folder)
        try:
            try:
                _write_all(descriptor, data)
                if old is not None:
                    _keep_rights(descriptor, old)
                if mode is not None:
                    os.fchmod(descriptor, mode & 0o777)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if abandoned.is_set():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise
        _sync_folder(folder)


def _read_all(descriptor: int, start: int, wanted: int, *, whole: bool) -> bytes:
    pieces: list[bytes] = []
    while wanted > 0:
        piece = os.pread(descriptor, min(wanted, 1 << 20), start)
        if not piece:
            break
        pieces.append(piece)
        start, wanted = start + len(piece), wanted - len(piece)
    if whole and not pieces:
        # Files of /proc and /sys report a size of 0.
        return os.pread(descriptor, 1 << 20, start)
    return b"".join(pieces)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _make_folder(folder: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _keep_rights(descriptor: int, old: os.stat_result) -> None:
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        # We may not be allowed to change the owner; the content matters more.
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


def _sync_folder(folder: int) -> None:
    """Make the rename durable; opens the folder again, since an O_PATH descriptor cannot sync."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
