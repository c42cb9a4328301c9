"""What a built-in tool may ask of a machine, without knowing which or how far away it is.

Paths are given as the model wrote them: relative to the workspace, or absolute within a root.
Implementations contain them (never outside a root, no link followed to the outside) and raise
`ToolFailure` with a message for the model when a request is refused or fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

CLOSED = ".evoclaw"
"""Our own folder, wherever it lies: what is in it is for no tool to read or change."""


class FileStat(Struct, frozen=True):
    """What is known of one file without reading it."""

    path: str
    """Relative to the workspace when inside it, with forward slashes."""
    kind: str
    """`file`, `dir`, `link` or `other` (fifo, socket, device: never opened)."""
    size: int
    mtime: float


class FileOps(Protocol):
    """Files of one machine, contained."""

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a regular file from byte `start`."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a regular file whole or not at all; make its folders; keep its mode."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a regular file; a link is refused, and its folder stays, empty or not."""
        ...

    async def stat(self, path: str) -> FileStat:
        """Look at one file; links inside the root are followed."""
        ...

    def walk(self, path: str = ".") -> AsyncIterator[FileStat]:
        """Yield the files below a folder in sorted order; links are yielded, never followed."""
        ...


class Completed(Struct, frozen=True):
    """How a process ended."""

    exit_code: int
    """Negative: minus the signal that ended it."""
    stdout: bytes
    """Head and tail of it when there was too much."""
    stderr: bytes
    stdout_bytes: int
    """How much there was in all."""
    stderr_bytes: int
    isolation: str
    """The sandbox it really ran in."""


class ExecOps(Protocol):
    """Processes of one machine."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output: int = 1 << 20,
    ) -> Completed:
        """Run a program to its end. Memory stays bounded by `max_output`.

        When the awaiting task is cancelled, the whole tree of processes is dead, and verified dead,
        before the cancellation goes on.
        """
        ...
