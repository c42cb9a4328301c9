"""What a caged process may reach: said once, for every sandbox engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from evoclaw.core.ops import ExecOps


class Confines(Struct, frozen=True):
    """The bounds of one cage. Paths are absolute and real; what is not named is not there."""

    workspace: str
    """The one folder it may change."""
    writable: tuple[str, ...] = ()
    """Further folders it may change."""
    readable: tuple[str, ...] = ()
    """Folders it may read beside the system's own programs and libraries."""
    protected: tuple[str, ...] = ()
    """Files and folders inside the writable ones that it may not change."""
    hidden: tuple[str, ...] = ()
    """Folders inside the writable ones that it may not even see."""
    proxy: str = ""
    """The socket of the egress proxy, its one way out; empty: no network at all."""
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
    tenant: str = "local"
    """Whose it is: nothing warm is shared between tenants."""
    trusted: bool = True
    """Whether what it runs was asked for in a trusted context: nothing warm is shared across."""


class Engine(Protocol):
    """A way to build a cage on this machine."""

    name: str
    """What results say they were isolated by."""

    def missing(self) -> str:
        """Why it cannot be used here, and what to do about it; empty when it can be tried."""
        ...

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside; its environment is handed on as it is."""
        ...


@runtime_checkable
class Warm(Engine, Protocol):
    """An engine that can keep a worker inside a cage, so that a command need not wait for one.

    The worker's input is a `SOCK_SEQPACKET` socket. It sends `up` when it stands. A message with
    two descriptors asks for a cell: a line, a socket of the same kind, and a grave, which is held
    and closed when the cell and everything in it are dead. A cell sends `R` on its line when it is
    ready (`X` and a reason if it cannot be) and takes one message with four descriptors: a memory
    file with `marshal`led argv, cwd and environment, then input, output and errors. It answers `S`
    and the exit code as a C int when nothing is left of the command, `L` and the code when it had
    to kill leftovers, which are dead when the grave closes, or `E` and an errno; `T` asks what runs
    in it to end. When the other end of the line or of the worker's input is closed, it ends with
    all that is in it.
    """

    def nursery(self, confines: Confines) -> tuple[str, ...]:
        """The command line of such a worker."""
        ...


@runtime_checkable
class Outliving(Engine, Protocol):
    """An engine whose processes are not ours, and live on when what we started is killed."""

    def ending(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command line that ends whatever is left of what this command line started."""
        ...


class Prover(Protocol):
    """Tries out a cage before anything is run in it."""

    async def prove(self, engine: Engine, confines: Confines, exec: ExecOps) -> None:
        """Raise `ToolFailure` (`sandbox_unavailable`) unless `exec` really is confined."""
        ...
