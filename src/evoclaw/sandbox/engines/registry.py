"""The engines by name, and the settings that choose one and its limits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy


class Unconfined:
    """No sandbox, for users who configure `none`. Never used in place of a missing engine."""

    name = "none"

    def missing(self) -> str:
        """Nothing is missing."""
        return ""

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line unchanged."""
        return tuple(argv)


BUBBLEWRAP, FIREJAIL, PODMAN, NATIVE, NO_ENGINE = (
    "bubblewrap",
    "firejail",
    "podman",
    "native",
    "none",
)
AUTO_ENGINE = "auto"
ENGINE_NAMES = (AUTO_ENGINE, BUBBLEWRAP, FIREJAIL, PODMAN, NATIVE, NO_ENGINE)

SYSTEM_FOLDERS = frozenset(
    {"usr", "etc", "bin", "sbin", "lib", "lib64", "dev", "proc", "sys", "boot", "run"}
)
"""Top-level folders that no workspace may be in."""


class SandboxPreset(Struct, frozen=True):
    """Folders and device nodes that belong together; those that are missing are left out."""

    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


PRESETS = {
    "raspberry-pi": SandboxPreset(
        readable=("/sys",),
        devices=(
            *("/dev/gpiochip0", "/dev/gpiochip4", "/dev/gpiomem", "/dev/gpiomem0"),
            *("/dev/i2c-1", "/dev/spidev0.0", "/dev/spidev0.1", "/dev/vcio"),
        ),
    )
}
"""By name. /dev/vcio is for `vcgencmd`, such as `vcgencmd measure_temp`."""
MEMORY_DEVICES = frozenset({"mem", "kmem", "port", "kmsg"})
"""Devices that open the memory or the log of the whole machine."""


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[sandbox]`: the engine that commands run in, and what they may reach and use there."""

    engine: str = AUTO_ENGINE
    """`bubblewrap`, `native`, `firejail`, `podman`; `none` only if you mean it. `auto` is
    bubblewrap, or native where that is not installed; never none."""
    tools: dict[str, str] = {}
    """Another engine for some tools, by their name."""
    warm: bool = True
    """Keep a worker pool ready inside the sandbox, where the engine can."""
    memory: int = 2 << 30
    """Maximum bytes of memory of a command."""
    processes: int = 256
    """Maximum number of processes of a command."""
    file_size: int = 1 << 30
    """Maximum bytes of a file."""
    open_files: int = 1024
    """Maximum number of open files of a process."""
    files: int = 200_000
    """Files that a command may create, approximately."""
    disk: int = 8 << 30
    """Bytes that a command may add to the disk, approximately."""
    max_folders: int = 100_000
    """Folders that the workspace may have: all are checked before and after each command. In a
    larger workspace no command runs."""
    writable: tuple[str, ...] = ()
    """Further folders that commands may change."""
    readable: tuple[str, ...] = ()
    """Folders that commands may read besides the system's programs and libraries."""
    devices: tuple[str, ...] = ()
    """Device nodes that commands may use, such as /dev/gpiomem; the user of the edge must be
    allowed to use them."""
    preset: str = ""
    """`raspberry-pi`: /sys is readable, and the pins and buses of the board are usable; empty: no
    preset."""

    @property
    def confines_all(self) -> bool:
        """Whether every command runs in a sandbox: no engine is `none`."""
        return NO_ENGINE not in (self.engine, *self.tools.values())

    def check(self) -> None:
        """Raise `ConfigError` for invalid settings."""
        for name in (self.engine, *self.tools.values()):
            if name not in ENGINE_NAMES:
                known = ", ".join(ENGINE_NAMES)
                raise ConfigError(f"unknown sandbox engine '{name}': choose one of {known}")
        for name in (
            "memory",
            "processes",
            "file_size",
            "open_files",
            "files",
            "disk",
            "max_folders",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"sandbox.{name} must be at least 1")
        for path in (*self.writable, *self.readable):
            if not Path(path).expanduser().is_absolute():
                raise ConfigError(f"sandbox folders must be absolute paths, not '{path}'")
        if self.preset not in ("", *PRESETS):
            known = ", ".join(PRESETS)
            raise ConfigError(f"unknown sandbox preset '{self.preset}': choose one of {known}")
        for path in self.devices:
            _check_device(path)
        if (self.devices or self.preset) and FIREJAIL in (self.engine, *self.tools.values()):
            raise ConfigError(
                "firejail cannot show single device nodes: choose bubblewrap, native or podman, or "
                "remove devices and preset from [sandbox]"
            )

    def sandbox_policy(
        self,
        workspace: str | Path,
        *,
        protected: Iterable[str] = (),
        readable: Iterable[str | Path] = (),
        hidden: Iterable[str] = (),
        tenant: str = "local",
        trusted: bool = True,
        proxy: str = "",
    ) -> SandboxPolicy:
        """The policy of a sandbox for a workspace; raise `ConfigError` for invalid settings."""
        self.check()
        root = _real(workspace)
        if root == "/" or root.split("/")[1] in SYSTEM_FOLDERS:
            raise ConfigError(
                f"'{root}' cannot be the workspace of a sandbox: commands could change the system. "
                "Choose a separate folder, for example in your home folder"
            )
        preset = PRESETS.get(self.preset, SandboxPreset())
        present = (path for path in preset.devices if Path(path).exists())
        return SandboxPolicy(
            root,
            writable=tuple(_real(path) for path in self.writable),
            readable=tuple(_real(path) for path in (*self.readable, *readable, *preset.readable)),
            devices=tuple(dict.fromkeys(_real(path) for path in (*self.devices, *present))),
            protected=tuple(protected),
            hidden=tuple(hidden),
            proxy=proxy,
            memory=self.memory,
            processes=self.processes,
            file_size=self.file_size,
            open_files=self.open_files,
            files=self.files,
            disk=self.disk,
            max_folders=self.max_folders,
            tenant=tenant,
            trusted=trusted,
        )


def _check_device(path: str) -> None:
    """Refuse a path that is no device node, or one that opens the whole machine."""
    real = Path(_real(path))
    if not real.is_char_device() or real.parts[:2] != ("/", "dev") or real.name in MEMORY_DEVICES:
        raise ConfigError(
            f"'{path}' cannot be used in a sandbox: name device nodes of this machine "
            "such as /dev/gpiomem, but no disk or memory"
        )


def _real(path: str | Path) -> str:
    return os.path.realpath(Path(path).expanduser())


def choose_engine(engine: str, available: Mapping[str, SandboxEngine]) -> str:
    """The engine to use; for `auto` the first one that is installed."""
    if engine != AUTO_ENGINE:
        return engine
    usable = (
        name for name in (BUBBLEWRAP, NATIVE) if name in available and not available[name].missing()
    )
    # Without any, the error of the usual engine says what to install.
    return next(usable, BUBBLEWRAP)


def package_engines() -> Mapping[str, SandboxEngine]:
    """The engines that need a package, and `none`, by name; the caller adds `native`."""
    from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
    from evoclaw.sandbox.engines.firejail import Firejail
    from evoclaw.sandbox.engines.podman import Podman

    found: tuple[SandboxEngine, ...] = (Bubblewrap(), Firejail(), Podman(), Unconfined())
    return {engine.name: engine for engine in found}
