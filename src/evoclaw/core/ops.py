"""The operations that built-in tools use on a machine, local or remote: files and processes.

Paths are as the model wrote them: relative to the workspace, or absolute within a root.
Implementations keep them inside the roots (no link is followed to the outside) and raise
`ToolFailure` with a message for the model when a request is denied or fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

STATE_FOLDER = ".evoclaw"
"""EvoClaw's own folder, in any directory: no tool may read or change its content."""


class FileStat(Struct, frozen=True):
    """The metadata of one file."""

    path: str
    """Relative to the workspace if inside it, with forward slashes."""
    kind: str
    """`file`, `dir`, `link` or `other` (fifo, socket, device: never opened)."""
    size: int
    mtime: float
    mode: int | None = None
    """The permission bits; None if they are not known."""


class FileOps(Protocol):
    """File operations on one machine, confined to its roots."""

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a regular file from byte `start`."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a regular file atomically; create its folders; keep its mode."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a regular file, but not a link; its folder stays, even if empty."""
        ...

    async def stat(self, path: str) -> FileStat:
        """The metadata of one file; links inside the root are followed."""
        ...

    def walk(self, path: str = ".") -> AsyncIterator[FileStat]:
        """Yield the files below a folder in sorted order; links are yielded, never followed."""
        ...


class CompletedProcess(Struct, frozen=True):
    """The outcome of a process."""

    exit_code: int
    """Negative if a signal ended the process: minus its number."""
    stdout: bytes
    """Its head and tail if it was longer than `max_output`."""
    stderr: bytes
    stdout_bytes: int
    """The full length."""
    stderr_bytes: int
    isolation: str
    """The sandbox in which it really ran."""


class ExecOps(Protocol):
    """Process operations on one machine."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output: int = 1 << 20,
    ) -> CompletedProcess:
        """Run a program to its end; at most `max_output` bytes of its output are kept in memory.

        When the awaiting task is cancelled, the whole process tree is killed, and verified dead,
        before the cancellation propagates.
        """
        ...
