"""What a caged process may reach: said once, for every sandbox engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


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
    proxy: str = ""
    """The socket of the egress proxy, its one way out; empty: no network at all."""
    memory: int = 2 << 30
    """Bytes."""
    processes: int = 256
    file_size: int = 1 << 30
    """Bytes of one file."""
    open_files: int = 1024
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
