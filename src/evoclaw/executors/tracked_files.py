"""`TrackedFiles`: files that keep their content before a call changes them, for `undo`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Protocol, TypeAlias

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import FileStat
from evoclaw.executors.files import LocalFiles

Keep: TypeAlias = Callable[[bytes], Awaitable[bool]]
"""Stores the content of a file under its hash; returns whether that was possible."""


class FileContent(Struct, frozen=True, omit_defaults=True):
    """The content of a file by its hash."""

    sha256: str
    size: int
    mode: int | None = None
    kept: bool = True
    """False if the content itself is not stored."""


class TrackedChange(Struct, frozen=True):
    """What a call did to one file; None: the file did not exist, or does not any more."""

    path: str
    before: FileContent | None
    after: FileContent | None


@dataclass(slots=True)
class ChangeLog:
    """The changes of one call, in order."""

    keep: Keep
    max_bytes: int
    """Of a file whose content is kept; of a larger one only the hash is."""
    changes: list[TrackedChange] = field(default_factory=list[TrackedChange])


current_change_log: ContextVar[ChangeLog | None] = ContextVar("change log", default=None)
"""The log of the call that runs in this context; without one, nothing is kept."""


def content_of(data: bytes, mode: int | None = None, *, kept: bool = True) -> FileContent:
    """The hash and size of some content."""
    return FileContent(sha256(data).hexdigest(), len(data), mode, kept)


class RestorableFiles(Protocol):
    """Files of a machine whose earlier content can be written back."""

    async def read(self, path: str) -> bytes:
        """The content of a regular file."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a file, with these permission bits if they are given."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a file."""
        ...

    async def stat(self, path: str) -> FileStat:
        """The metadata of a file."""
        ...


class TrackedFiles(LocalFiles):
    """Files of this machine; what a call overwrites or deletes is stored before."""

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a file, after its content was kept."""
        change = partial(super().write, path, data, mode=mode)
        await track_change(self, path, content_of(data), change)

    async def remove(self, path: str) -> None:
        """Delete a file, after its content was kept."""
        await track_change(self, path, None, partial(super().remove, path))


async def track_change(
    files: RestorableFiles,
    path: str,
    after: FileContent | None,
    change: Callable[[], Awaitable[None]],
) -> None:
    """Change a file; if a call has a change log, keep the file's content before and log it."""
    log = current_change_log.get()
    if log is None:
        await change()
        return
    before = await _keep(files, path, log)
    await change()
    log.changes.append(TrackedChange(path, before, after))


async def current_content(files: RestorableFiles, path: str) -> FileContent | None:
    """The content of a file now; None if there is no file."""
    try:
        about = await files.stat(path)
        return content_of(await files.read(path), about.mode)
    except ToolFailure as problem:
        if problem.kind is ErrorKind.NOT_FOUND:
            return None
        raise


async def _keep(files: RestorableFiles, path: str, log: ChangeLog) -> FileContent | None:
    """Store the content of a file that is about to be changed, unless it is too large."""
    try:
        about = await files.stat(path)
    except ToolFailure as problem:
        if problem.kind is ErrorKind.NOT_FOUND:
            return None
        raise
    if about.kind != "file":
        return None  # the change itself is refused
    if about.size > log.max_bytes:
        return FileContent("", about.size, about.mode, kept=False)
    data = await files.read(path)
    return content_of(data, about.mode, kept=await log.keep(data))
