"""Files on another machine over SFTP: atomic replacement, errors and their messages, `SshWalk`."""

from __future__ import annotations

import difflib
import errno
import heapq
import os
import posixpath
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import FileStat
from evoclaw.executors.file_walk import MAX_DEPTH, MAX_FOLDER_ENTRIES, kind_of
from evoclaw.executors.roots import outside
from evoclaw.executors.ssh.connection import SshConnection

if TYPE_CHECKING:
    from asyncssh import SFTPAttrs, SFTPClient, SFTPClientFile, SFTPError


async def look(sftp: SFTPClient, path: str) -> SFTPAttrs | None:
    """The attributes of a path, without following a link; None if it does not exist."""
    from asyncssh import SFTPNoSuchFile

    try:
        return await sftp.lstat(path)
    except SFTPNoSuchFile:
        return None


async def make_folder(sftp: SFTPClient, path: str) -> None:
    """Create a folder, unless it exists by now."""
    from asyncssh import SFTPFailure, SFTPFileAlreadyExists

    try:
        await sftp.mkdir(path)
    except (SFTPFailure, SFTPFileAlreadyExists):
        # Another process created it; if not, the caller's `lstat` reports that.
        return


async def fill(
    sftp: SFTPClient, draft: str, data: bytes, old: SFTPAttrs | None, mode: int | None = None
) -> None:
    """Write a new file, with a given mode or that of the file it will replace."""
    from asyncssh import SFTPAttrs, SFTPOpUnsupported

    if mode is None and old is not None:
        mode = stat.S_IMODE(old.permissions or 0o600)
    # Not readable for others until it has its mode; exclusive creation follows no link.
    attrs = SFTPAttrs() if mode is None else SFTPAttrs(permissions=mode & 0o700 | 0o600)
    file = await sftp.open(draft, "xb", attrs)
    try:
        if data:
            await file.write(data, 0)
        if old is not None:
            await _keep_owner(file, old)
        if mode is not None:
            await file.setstat(SFTPAttrs(permissions=mode & 0o777))
        try:
            await file.fsync()
        except SFTPOpUnsupported:
            # An extension that not every server has.
            return
    finally:
        await file.close()


async def _keep_owner(file: SFTPClientFile, old: SFTPAttrs) -> None:
    from asyncssh import SFTPAttrs, SFTPError

    now = await file.stat()
    if (now.uid, now.gid) != (old.uid, old.gid) and old.uid is not None:
        try:
            await file.setstat(SFTPAttrs(uid=old.uid, gid=old.gid))
        except SFTPError:
            # We may not be allowed to change the owner; the content matters more.
            return


async def drop(sftp: SFTPClient, draft: str) -> None:
    """Remove a draft that will not be used."""
    from asyncssh import Error

    try:
        await sftp.remove(draft)
    except (Error, OSError):
        # The draft was renamed after all, or the connection is dead.
        return


MAX_NEAR_NAMES = 1000
"""Names that are compared with a name that was not found."""


def file_kind(about: SFTPAttrs) -> str:
    """The `FileStat` kind of a file, from its attributes."""
    return kind_of(about.permissions or 0)


def check_regular(path: str, about: SFTPAttrs) -> None:
    """Refuse anything but a regular file: others must never be opened."""
    kind = file_kind(about)
    if kind == "dir":
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, f"'{path}' is a folder. List it to see what is in it."
        )
    if kind != "file":
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"'{path}' is a pipe, socket or device, not a file. It cannot be used.",
        )


def os_error(problem: SFTPError) -> OSError:
    """The server's error as an `OSError`."""
    import asyncssh

    known: Sequence[tuple[type[SFTPError], int]] = (
        (asyncssh.SFTPNoSuchFile, errno.ENOENT),
        (asyncssh.SFTPNoSuchPath, errno.ENOENT),
        (asyncssh.SFTPPermissionDenied, errno.EACCES),
        (asyncssh.SFTPBadMessage, errno.EINVAL),
        (asyncssh.SFTPNoSpaceOnFilesystem, errno.ENOSPC),
        (asyncssh.SFTPQuotaExceeded, errno.EDQUOT),
        (asyncssh.SFTPNotADirectory, errno.ENOTDIR),
    )
    for kind, code in known:
        if isinstance(problem, kind):
            return OSError(code, os.strerror(code))
    return OSError(errno.EIO, problem.reason)


async def near(sftp: SFTPClient, folder: str, path: str) -> list[str]:
    """Names like the one that was not found, in the same folder."""
    name = posixpath.basename(path.rstrip("/"))
    if name.startswith("."):
        # Such as .gitignore: looked for in every folder, not misspelt.
        return []
    names: list[str] = []
    async for entry in sftp.scandir(folder):
        names.append(str(entry.filename))
        if len(names) >= MAX_NEAR_NAMES:
            break
    found = difflib.get_close_matches(name, names, n=3)
    return [posixpath.join(posixpath.dirname(path), match) for match in found]


class SshWalk:
    """The files below a folder, as an async iterator; nothing stays open between two steps."""

    def __init__(
        self,
        connection: SshConnection,
        path: str,
        locate: Callable[[SFTPClient, str], Awaitable[tuple[str, str]]],
    ) -> None:
        self._ssh, self._path, self._locate = connection, path, locate
        self._folders: list[Iterator[FileStat]] = []
        self._start = ""
        """The resolved path of the requested folder, once known."""
        self._shown = posixpath.normpath(path)
        self._entering: str | None = ""
        """Relative to the start: the folder to go into next."""

    def __aiter__(self) -> SshWalk:
        return self

    async def __anext__(self) -> FileStat:
        if self._entering is not None:
            folder, self._entering = self._entering, None
            listed = await self._ssh.harmless(lambda sftp: self._list(sftp, folder))
            self._folders.append(iter(listed))
        while self._folders:
            entry = next(self._folders[-1], None)
            if entry is None:
                self._folders.pop()
                continue
            if entry.kind == "dir" and len(entry.path) < MAX_DEPTH:
                prefix = "" if self._shown == "." else self._shown.rstrip("/") + "/"
                self._entering = entry.path[len(prefix) :]
            return entry
        raise StopAsyncIteration

    def skip(self) -> None:
        """Do not go into the folder yielded last."""
        self._entering = None

    async def _list(self, sftp: SFTPClient, folder: str) -> list[FileStat]:
        from asyncssh import SFTPConnectionLost, SFTPError, SFTPNoConnection

        if not folder:
            self._start, self._shown = await self._locate(sftp, self._path)
        real = posixpath.join(self._start, folder) if folder else self._start
        try:
            found = await self._entries(sftp, real, posixpath.join(self._shown, folder))
            if await sftp.realpath(real) == real:
                return found
        except (SFTPConnectionLost, SFTPNoConnection):
            raise
        except SFTPError:
            # Removed, or not readable for us: nothing to list.
            return []
        if not folder:
            raise outside(self._path)
        return []

    async def _entries(self, sftp: SFTPClient, real: str, above: str) -> list[FileStat]:
        above = posixpath.normpath(above)
        prefix = "" if above == "." else above.rstrip("/") + "/"
        found: list[FileStat] = []
        async for entry in sftp.scandir(real):
            name, about = str(entry.filename), entry.attrs
            if name in (".", "..") or "/" in name:
                continue
            kind = kind_of(about.permissions or 0)
            found.append(FileStat(prefix + name, kind, about.size or 0, float(about.mtime or 0)))
            if len(found) >= 2 * MAX_FOLDER_ENTRIES:
                found = heapq.nsmallest(MAX_FOLDER_ENTRIES, found, key=attrgetter("path"))
        found.sort(key=attrgetter("path"))
        return found[:MAX_FOLDER_ENTRIES]
