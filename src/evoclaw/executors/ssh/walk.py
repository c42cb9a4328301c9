"""`SshWalk`: walks the files of another machine in sorted order, one folder in memory at a time."""

from __future__ import annotations

import heapq
import posixpath
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from evoclaw.core.ops import FileStat
from evoclaw.executors.file_walk import MAX_DEPTH, MAX_FOLDER_ENTRIES, kind_of
from evoclaw.executors.roots import outside
from evoclaw.executors.ssh.connection import SshConnection

if TYPE_CHECKING:
    from asyncssh import SFTPClient


class SshWalk:
    """What is below a folder, as an async iterator; nothing stays open between two steps."""

    def __init__(
        self,
        connection: SshConnection,
        path: str,
        locate: Callable[[SFTPClient, str], Awaitable[tuple[str, str]]],
    ) -> None:
        self._ssh, self._path, self._locate = connection, path, locate
        self._folders: list[Iterator[FileStat]] = []
        self._start = ""
        """The true path of the folder that was asked for, once known."""
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
            # Gone or closed to us: there is nothing to see here.
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
