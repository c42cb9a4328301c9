"""The meaning of an SFTP server's errors, and their messages for the model."""

from __future__ import annotations

import difflib
import errno
import os
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.file_walk import kind_of

if TYPE_CHECKING:
    from asyncssh import SFTPAttrs, SFTPClient, SFTPError

MAX_NEAR_NAMES = 1000
"""Names that are compared with a name that was not found."""


def file_kind(about: SFTPAttrs) -> str:
    """The `FileStat` word for what the server says of a file."""
    return kind_of(about.permissions or 0)


def check_regular(path: str, about: SFTPAttrs) -> None:
    """Refuse what is no regular file; it must never be opened."""
    kind = file_kind(about)
    if kind == "dir":
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, f"'{path}' is a folder. Use glob to see what is in it."
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
