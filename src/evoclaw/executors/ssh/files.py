"""`SshFiles`: the files of another machine over SFTP, contained in a folder there.

SFTP knows paths only, never "open below this folder". So a path is resolved by the server, judged,
opened, and resolved again. This holds against every path a model can write and every link that is
there. It does not hold against a local user of that machine who may write to the workspace and
swaps folders for links between the two checks: where such a user exists, have sshd confine the
account (`ChrootDirectory`), or run an edge there, which uses `openat2`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import secrets
import stat
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import FileStat
from evoclaw.executors.files import MAX_READ_BYTES
from evoclaw.executors.process_output import wait_uncancelled
from evoclaw.executors.protected_paths import check_not_protected
from evoclaw.executors.roots import Root, check_path, explained, outside
from evoclaw.executors.ssh.connection import SshConnection
from evoclaw.executors.ssh.sftp import (
    SshWalk,
    check_regular,
    drop,
    file_kind,
    fill,
    look,
    make_folder,
    near,
    os_error,
)

if TYPE_CHECKING:
    from asyncssh import SFTPAttrs, SFTPClient, SFTPError


class SshFiles:
    """Files of another machine.

    Links are followed only when reading, and only as long as they stay inside; a write replaces
    the file atomically and follows no link.
    """

    def __init__(self, connection: SshConnection, root: str, *, protect: bool = True) -> None:
        """Set which files may be accessed.

        Args:
            connection: The machine.
            root: The workspace there: absolute, or relative to the home folder.
            protect: Whether hooks, profiles and our own settings are write-protected.
        """
        self._ssh, self._protect = connection, protect
        self._given = root
        self._root: Root | None = None

    async def check(self) -> None:
        """Raise `ConfigError` if the machine or the folder cannot be used."""
        await self._ssh.open()
        try:
            await self._ssh.harmless(self.root)
        except ToolFailure as failure:
            raise ConfigError(failure.message) from None

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a regular file from byte `start`."""
        check_path(path)
        return await self._ssh.harmless(lambda sftp: self._read(sftp, path, start, limit))

    async def stat(self, path: str) -> FileStat:
        """Stat one file; links inside the root are followed."""
        check_path(path)
        return await self._ssh.harmless(lambda sftp: self._stat(sftp, path))

    def walk(self, path: str = ".") -> SshWalk:
        """Yield what is below a folder in sorted order; links are yielded, never followed.

        Folders are yielded before what is in them; `skip()` leaves out the one yielded last.
        """
        check_path(path)
        return SshWalk(self._ssh, path, self._folder)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a regular file atomically; create its folders; set or keep its mode.

        It is durable if the server can sync files; SFTP has no way to sync a folder.
        """
        check_path(path)
        folder, name = await self._ssh.harmless(lambda sftp: self._place(sftp, path))
        # A separate task: cancelling the caller must not leave a draft behind.
        writing = asyncio.create_task(
            self._ssh.once(lambda sftp: self._write(sftp, path, folder, name, data, mode))
        )
        try:
            await asyncio.wait([writing])
        except asyncio.CancelledError:
            writing.cancel()
            await wait_uncancelled(writing)
            raise
        await writing

    async def remove(self, path: str) -> None:
        """Delete a regular file; a link is refused, and its folder stays, empty or not."""
        check_path(path)
        folder, name = await self._ssh.harmless(lambda sftp: self._place(sftp, path))
        await self._ssh.once(lambda sftp: self._remove(sftp, path, folder, name))

    async def root(self, sftp: SFTPClient) -> Root:
        """The workspace, resolved by the server once."""
        if self._root is None:
            from asyncssh import SFTPConnectionLost, SFTPError, SFTPNoConnection

            try:
                real = await sftp.realpath(self._given)
                about = await sftp.stat(real)
            except (SFTPConnectionLost, SFTPNoConnection):
                raise
            except SFTPError as problem:
                raise explained(os_error(problem), self._given) from None
            if file_kind(about) != "dir":
                raise ToolFailure(
                    ErrorKind.NOT_FOUND, f"'{self._given}' is not a folder on {self._ssh.name}."
                )
            self._root = Root(real, (real, self._given.rstrip("/") or "/"), writable=True)
        return self._root

    async def real(self, sftp: SFTPClient, path: str) -> tuple[str, SFTPAttrs]:
        """The resolved path inside the root, and its attributes."""
        from asyncssh import SFTPError

        root = await self.root(sftp)
        full = posixpath.join(root.path, _relative(root, path))
        if path.endswith("/") and full != "/":
            full = full.rstrip("/")
        try:
            real = await sftp.realpath(full)
            if not within(root, real):
                raise outside(path)
            return real, await sftp.lstat(real)
        except SFTPError as problem:
            raise await self._reason(sftp, full, path, problem) from None

    async def _shown(self, sftp: SFTPClient, path: str) -> str:
        return posixpath.normpath(_relative(await self.root(sftp), path))

    async def _folder(self, sftp: SFTPClient, path: str) -> tuple[str, str]:
        """The resolved path of a folder, and the path to show."""
        real, about = await self.real(sftp, path)
        if file_kind(about) != "dir":
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{path}' is not a folder.")
        return real, await self._shown(sftp, path)

    async def _reason(
        self, sftp: SFTPClient, full: str, path: str, problem: SFTPError
    ) -> ToolFailure:
        """The actual error: SFTP has one code for most, and must not reveal what is outside."""
        from asyncssh import SFTPConnectionLost, SFTPError, SFTPNoConnection

        if isinstance(problem, SFTPConnectionLost | SFTPNoConnection):
            raise problem
        root = await self.root(sftp)
        if not within(root, posixpath.normpath(full)):
            return outside(path)
        above, found = posixpath.dirname(full), None
        while found is None and above != "/":
            try:
                found = await sftp.realpath(above)
                kind = file_kind(await sftp.lstat(found))
            except SFTPError:
                above, found = posixpath.dirname(above), None
                continue
            if not within(root, found):
                return outside(path)
            if kind != "dir":
                return explained(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), path)
        code = os_error(problem)
        if code.errno != errno.ENOENT or found is None:
            return explained(code, path)
        try:
            if file_kind(await sftp.lstat(full)) == "link":
                return explained(OSError(errno.ELOOP, ""), path)
        except SFTPError:
            return explained(code, path, await near(sftp, found, path))
        return explained(code, path)

    async def _read(self, sftp: SFTPClient, path: str, start: int, limit: int | None) -> bytes:
        from asyncssh import SFTPError

        real, about = await self.real(sftp, path)
        # Checked before it is opened: opening a pipe would block the server forever.
        check_regular(path, about)
        size = about.size or 0
        length = max(0, size - start) if limit is None else limit
        if length > MAX_READ_BYTES:
            raise ToolFailure(
                ErrorKind.TOO_LARGE,
                f"'{path}' has {size:,} bytes, too many to read at once. "
                "Read a part of it, or search it with grep.",
            )
        if limit is None and size == 0:
            # Files of /proc and /sys report a size of 0.
            length = 1 << 20
        try:
            file = await sftp.open(real, "rb")
            try:
                opened, again = await asyncio.gather(file.stat(), sftp.realpath(real))
                check_regular(path, opened)
                if again != real:
                    raise outside(path)
                return await file.read(length, start) if length else b""
            finally:
                await file.close()
        except SFTPError as problem:
            raise await self._reason(sftp, real, path, problem) from None

    async def _stat(self, sftp: SFTPClient, path: str) -> FileStat:
        _, about = await self.real(sftp, path)
        shown = await self._shown(sftp, path)
        mode = None if about.permissions is None else stat.S_IMODE(about.permissions)
        return FileStat(shown, file_kind(about), about.size or 0, float(about.mtime or 0), mode)

    async def _place(self, sftp: SFTPClient, path: str) -> tuple[str, str]:
        """The folder, reached without links, and the name to write in it."""
        root = await self.root(sftp)
        # No links are followed, so resolving `..` textually equals walking it.
        relative = posixpath.normpath(_relative(root, path))
        if relative == ".." or relative.startswith("../"):
            raise outside(path)
        above, name = posixpath.split(relative)
        if path.endswith("/") or name in ("", "."):
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS, f"'{path}' names a folder. Add the file's name."
            )
        if self._protect:
            check_not_protected(path, relative)
        # A harmless request first, which detects a dead connection.
        await sftp.realpath(root.path)
        return posixpath.join(root.path, above) if above else root.path, name

    async def _write(
        self,
        sftp: SFTPClient,
        path: str,
        folder: str,
        name: str,
        data: bytes,
        mode: int | None,
    ) -> None:
        from asyncssh import SFTPError

        target = posixpath.join(folder, name)
        draft = posixpath.join(folder, f".evoclaw-{secrets.token_hex(8)}.tmp")
        try:
            await self._go(sftp, folder, path, make=True)
            old = await _present(sftp, target, path)
            try:
                await fill(sftp, draft, data, old, mode)
                if await sftp.realpath(folder) != folder:
                    raise outside(path)
                await sftp.posix_rename(draft, target)
            except BaseException:
                await drop(sftp, draft)
                raise
        except SFTPError as problem:
            raise await self._unchanged(sftp, folder, path, problem, len(data)) from None

    async def _remove(self, sftp: SFTPClient, path: str, folder: str, name: str) -> None:
        from asyncssh import SFTPError

        target = posixpath.join(folder, name)
        try:
            await self._go(sftp, folder, path, make=False)
            if await _present(sftp, target, path) is None:
                missing = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                raise explained(missing, path, await near(sftp, folder, path))
            if await sftp.realpath(folder) != folder:
                raise outside(path)
            await sftp.remove(target)
        except SFTPError as problem:
            raise await self._unchanged(sftp, folder, path, problem, 0) from None

    async def _go(self, sftp: SFTPClient, folder: str, path: str, *, make: bool) -> None:
        """Check that a folder exists and no link leads to it; create it if asked to."""
        root = await self.root(sftp)
        here = root.path
        for name in folder[len(root.path) :].split("/"):
            here = posixpath.join(here, name) if name else here
            about = await look(sftp, here)
            if about is None and make:
                await make_folder(sftp, here)
                about = await sftp.lstat(here)
            if about is None:
                raise explained(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), path)
            code = {"dir": 0, "link": errno.ELOOP}.get(file_kind(about), errno.ENOTDIR)
            if code:
                raise explained(OSError(code, os.strerror(code)), path)

    async def _unchanged(
        self, sftp: SFTPClient, folder: str, path: str, problem: SFTPError, size: int
    ) -> ToolFailure:
        from asyncssh import SFTPConnectionLost, SFTPError, SFTPFailure, SFTPNoConnection

        if isinstance(problem, SFTPConnectionLost | SFTPNoConnection):
            return self._ssh.broke(problem)
        if isinstance(problem, SFTPFailure):
            try:
                disk = await sftp.statvfs(folder)
                if disk.bavail * disk.frsize < size:
                    return explained(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)
            except SFTPError:
                # Not every server supports this; then its own error is used.
                return explained(os_error(problem), path)
        return explained(os_error(problem), path)


def within(root: Root, real: str) -> bool:
    """Whether a resolved path is the root or in it."""
    return real == root.path or real.startswith(root.path.rstrip("/") + "/")


def _relative(root: Root, path: str) -> str:
    if not path.startswith("/"):
        return path
    for spelling in root.spellings:
        if path == spelling or path.startswith(spelling.rstrip("/") + "/"):
            return path[len(spelling) :].lstrip("/") or "."
    raise outside(path)


async def _present(sftp: SFTPClient, target: str, path: str) -> SFTPAttrs | None:
    """The regular file that is to be changed, if there is one."""
    about = await look(sftp, target)
    if about is not None and file_kind(about) == "link":
        raise explained(OSError(errno.ELOOP, os.strerror(errno.ELOOP)), path)
    if about is not None:
        check_regular(path, about)
    return about
