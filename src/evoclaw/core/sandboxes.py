"""`SandboxPolicy`: what a sandboxed process may reach; and the ports of sandbox engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct


class SandboxPolicy(Struct, frozen=True):
    """The limits of one sandbox. Paths are absolute and real; a path not named is not visible."""

    workspace: str
    """The one folder it may change."""
    writable: tuple[str, ...] = ()
    """Further folders it may change."""
    readable: tuple[str, ...] = ()
    """Folders it may read beside the system's own programs and libraries."""
    devices: tuple[str, ...] = ()
    """Device nodes that it may use beside the harmless ones, such as /dev/null."""
    protected: tuple[str, ...] = ()
    """Files and folders inside the writable ones that it may not change."""
    hidden: tuple[str, ...] = ()
    """Folders inside the writable ones that it may not even see."""
    proxy: str = ""
    """The socket of the egress proxy, its only egress; empty: no network at all."""
    memory: int = 2 << 30
    """Bytes."""
    processes: int = 256
    file_size: int = 1 << 30
    """Bytes of one file."""
    open_files: int = 1024
    files: int = 200_000
    """New files and folders that one command may leave on the disk, roughly."""
    disk: int = 8 << 30
    """Bytes that it may add there, roughly."""
    max_folders: int = 100_000
    """Folders that the workspace may have: all are checked after each command."""
    tenant: str = "local"
    """The tenant it belongs to: no warm worker is shared between tenants."""
    trusted: bool = True
    """Whether its commands come from a trusted context: no warm worker is shared across."""


class SandboxEngine(Protocol):
    """A way to build a sandbox on this machine."""

    name: str
    """What results say they were isolated by."""

    def missing(self) -> str:
        """Why it cannot be used here, and what to do about it; empty when it can be tried."""
        ...

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside; its environment is passed on unchanged."""
        ...


@runtime_checkable
class WarmEngine(SandboxEngine, Protocol):
    """An engine that can keep a worker pool inside a sandbox, so that commands start at once.

    The pool's stdin is a `SOCK_SEQPACKET` socket. The pool sends `up` when it is ready. A message
    with two descriptors asks for a worker: its control socket, of the same kind, and its exit pipe,
    which is closed when the worker and everything in it are dead. A worker sends `R` on its control
    socket when it is ready (`X` and a reason if it failed) and takes one message with four
    descriptors: a memory file with `marshal`led argv, cwd and environment, then stdin, stdout and
    stderr. It answers `S` and the exit code as a C int when nothing is left of the command, `L` and
    the code when it had to kill leftovers, which are dead when the exit pipe closes, or `E` and an
    errno; `T` asks the processes in it to end. When the other end of the control socket, or of the
    pool's stdin, is closed, it ends with everything in it.
    """

    def worker_pool_command(self, policy: SandboxPolicy) -> tuple[str, ...]:
        """The command line of the worker pool."""
        ...


@runtime_checkable
class DetachedEngine(SandboxEngine, Protocol):
    """An engine whose processes are not our children, and survive when we kill what we started."""

    def end_command(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command line that ends every process that this command line started."""
        ...
