"""The engines by name, and the settings that choose one and its limits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import Confines, Engine


class NoCage:
    """Confines nothing. Never a stand-in for an engine that is missing."""

    name = "none"

    def missing(self) -> str:
        """Nothing is."""
        return ""

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The same command."""
        return tuple(argv)


BUBBLEWRAP, FIREJAIL, PODMAN, NATIVE, NONE = "bubblewrap", "firejail", "podman", "native", "none"
AUTO = "auto"
NAMES = (AUTO, BUBBLEWRAP, FIREJAIL, PODMAN, NATIVE, NONE)

SYSTEM = frozenset(
    {"usr", "etc", "bin", "sbin", "lib", "lib64", "dev", "proc", "sys", "boot", "run"}
)
"""Folders of the root that no workspace can lie in."""


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[sandbox]`: in what commands run, and what they may reach and use up there."""

    engine: str = AUTO
    """`bubblewrap`, `native`, `firejail`, `podman`; `none` only if you mean it. `auto` is
    bubblewrap, or native where that is not installed; never none."""
    tools: dict[str, str] = {}
    """Another engine for some tools, by their name."""
    warm: bool = True
    """Keep a worker ready inside the cage, where the engine can."""
    memory: int = 2 << 30
    """Bytes."""
    processes: int = 256
    file_size: int = 1 << 30
    """Bytes of one file."""
    open_files: int = 1024
    files: int = 200_000
    """Files that one command may make, roughly."""
    disk: int = 8 << 30
    """Bytes that one command may add to the disk, roughly."""
    writable: tuple[str, ...] = ()
    """Further folders that commands may change."""
    readable: tuple[str, ...] = ()
    """Folders that commands may read beside the system's own programs and libraries."""

    def check(self) -> None:
        """Raise `ConfigError` for what cannot be meant."""
        for name in (self.engine, *self.tools.values()):
            if name not in NAMES:
                known = ", ".join(NAMES)
                raise ConfigError(f"there is no sandbox engine '{name}': choose one of {known}")
        for name in ("memory", "processes", "file_size", "open_files", "files", "disk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sandbox.{name} must be at least 1")
        for path in (*self.writable, *self.readable):
            if not Path(path).expanduser().is_absolute():
                raise ConfigError(f"sandbox folders are absolute paths, not '{path}'")

    def confines(
        self,
        workspace: str | Path,
        *,
        protected: Iterable[str] = (),
        readable: Iterable[str | Path] = (),
        hidden: Iterable[str] = (),
        tenant: str = "local",
        trusted: bool = True,
        proxy: str = "",
    ) -> Confines:
        """The bounds of a cage for a workspace; raise `ConfigError` for what cannot be meant."""
        self.check()
        place = _real(workspace)
        if place == "/" or place.split("/")[1] in SYSTEM:
            raise ConfigError(
                f"'{place}' cannot be the workspace of a sandbox: it would open the system itself. "
                "Choose a folder of its own, for example below your home"
            )
        return Confines(
            place,
            writable=tuple(_real(path) for path in self.writable),
            readable=tuple(_real(path) for path in (*self.readable, *readable)),
            protected=tuple(protected),
            hidden=tuple(hidden),
            proxy=proxy,
            memory=self.memory,
            processes=self.processes,
            file_size=self.file_size,
            open_files=self.open_files,
            files=self.files,
            disk=self.disk,
            tenant=tenant,
            trusted=trusted,
        )


def _real(path: str | Path) -> str:
    return os.path.realpath(Path(path).expanduser())


def choose(engine: str, there: Mapping[str, Engine]) -> str:
    """The engine to use; if the choice is ours, the first one that is installed."""
    if engine != AUTO:
        return engine
    usable = (name for name in (BUBBLEWRAP, NATIVE) if name in there and not there[name].missing())
    # With none there, the usual one says what to install.
    return next(usable, BUBBLEWRAP)


def engines() -> Mapping[str, Engine]:
    """The engines of this room by name; `native` is added by who has it."""
    from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
    from evoclaw.sandbox.engines.firejail import Firejail
    from evoclaw.sandbox.engines.podman import Podman
    from evoclaw.sandbox.engines.registry import NoCage

    found: tuple[Engine, ...] = (Bubblewrap(), Firejail(), Podman(), NoCage())
    return {engine.name: engine for engine in found}
