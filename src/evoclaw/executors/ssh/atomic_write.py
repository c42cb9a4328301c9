"""Replaces a file on another machine atomically, step by step."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncssh import SFTPAttrs, SFTPClient, SFTPClientFile


async def look(sftp: SFTPClient, path: str) -> SFTPAttrs | None:
    """What is at a path, a link itself included; None if nothing is."""
    from asyncssh import SFTPNoSuchFile

    try:
        return await sftp.lstat(path)
    except SFTPNoSuchFile:
        return None


async def make_folder(sftp: SFTPClient, path: str) -> None:
    """Create a folder, unless it exists meanwhile."""
    from asyncssh import SFTPFailure, SFTPFileAlreadyExists

    try:
        await sftp.mkdir(path)
    except (SFTPFailure, SFTPFileAlreadyExists):
        # Made by somebody else meanwhile; if not, looking at it says so.
        return


async def fill(sftp: SFTPClient, draft: str, data: bytes, old: SFTPAttrs | None) -> None:
    """Write a new file, with the mode of the one it will replace."""
    from asyncssh import SFTPAttrs, SFTPOpUnsupported

    mode = 0o666 if old is None else stat.S_IMODE(old.permissions or 0o600) & 0o777
    # Closed to others until it has its mode; exclusive creation follows no link.
    attrs = SFTPAttrs() if old is None else SFTPAttrs(permissions=mode & 0o700 | 0o600)
    file = await sftp.open(draft, "xb", attrs)
    try:
        if data:
            await file.write(data, 0)
        if old is not None:
            await _keep_owner(file, old)
            await file.setstat(SFTPAttrs(permissions=mode))
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
            # It may not be ours to give away; the content matters more than the owner.
            return


async def drop(sftp: SFTPClient, draft: str) -> None:
    """Remove a draft that will not be used."""
    from asyncssh import Error

    try:
        await sftp.remove(draft)
    except (Error, OSError):
        # Renamed after all, or nobody is there any more.
        return
