"""Paths in settings: `~` is the home folder; relative paths start at the settings file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evoclaw.core.errors import ConfigError
from evoclaw.core.toml import MAX_TOML_BYTES

HARMLESS_FILES = ("/etc/hostname", "/etc/os-release")
"""What people ask a machine about, and what tells nothing secret."""


def harmless_files() -> list[str]:
    """The harmless files that this machine has."""
    return [name for name in HARMLESS_FILES if Path(name).is_file()]


def read_roots(env: Mapping[str, str]) -> tuple[Path, ...]:
    """What tools of this machine may read besides the workspace: `EVOCLAW_READ_ROOTS`."""
    text = env.get("EVOCLAW_READ_ROOTS")
    names = harmless_files() if text is None else text.split(os.pathsep)
    try:
        return tuple(expand(name, Path.cwd(), env) for name in names if name)
    except ValueError as problem:
        raise ConfigError(f"EVOCLAW_READ_ROOTS: {problem}") from None


def default_data_folder(env: Mapping[str, str]) -> Path:
    """The data folder: `EVOCLAW_HOME`, or `~/.evoclaw`."""
    try:
        return expand(env.get("EVOCLAW_HOME") or "~/.evoclaw", Path.cwd(), env)
    except ValueError as problem:
        raise ConfigError(f"EVOCLAW_HOME: {problem}") from None


def expand(text: str, folder: Path, env: Mapping[str, str]) -> Path:
    """The absolute path of a text; `ValueError` if it is not a path."""
    if not text or "\0" in text:
        raise ValueError("a path may not be empty or contain a NUL character")
    first, _, rest = text.partition("/")
    if first == "~":
        return _home(env) / rest
    if first.startswith("~"):
        raise ValueError(f"{text!r}: write the home folder of another user as a full path")
    return folder.absolute() / text


def path_decoder(folder: Path, env: Mapping[str, str]) -> Callable[[type, Any], Any]:
    """A decode hook for msgspec that converts strings to paths."""

    def decode(kind: type, value: Any) -> Any:
        if kind is not Path or not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return expand(value, folder, env)

    return decode


def read_text(path: Path) -> str:
    """The text of a small file; `ConfigError` if it cannot be read."""
    try:
        if not path.is_file():
            # Checked before opening: opening a named pipe would block.
            raise ConfigError(f"the file {path} does not exist")
        with path.open("rb") as file:
            data = file.read(MAX_TOML_BYTES + 1)
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    if len(data) > MAX_TOML_BYTES:
        raise ConfigError(f"{path} is too large: it has more than {MAX_TOML_BYTES // 1024} KB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text") from None


def _home(env: Mapping[str, str]) -> Path:
    if given := env.get("HOME"):
        return Path(given).absolute()
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError("the home folder is unknown; set HOME or EVOCLAW_HOME") from None
