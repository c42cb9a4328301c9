"""`environment` in the data folder: API keys and other variables, one `NAME=value` a line.

systemd can read the same file (`EnvironmentFile=`). A variable of the environment wins over it.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from evoclaw.cli.data_folder import data_folder, make_private, privacy_problem
from evoclaw.core.errors import ConfigError

ENVIRONMENT_FILE = "environment"
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_HOME = "EVOCLAW_HOME"
"""Says where the file is, and so cannot be in it."""


def load_environment_file(env: MutableMapping[str, str]) -> None:
    """Add the variables of the file; `ConfigError` if others can read it or it is not readable."""
    path = data_folder(env) / ENVIRONMENT_FILE
    try:
        if not path.is_file():
            return
        if problem := privacy_problem(path):
            raise ConfigError(f"{problem}: it may contain keys")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from None
    for name, value in _parse(text, path).items():
        if name != _HOME:
            env.setdefault(name, value)


def add_variable(env: MutableMapping[str, str], name: str, value: str) -> Path:
    """Store a variable in the file, in place of an older value, and set it; returns the file."""
    from evoclaw.transport.private_files import write_private

    path = data_folder(env) / ENVIRONMENT_FILE
    make_private(path.parent)
    kept: list[str] = []
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _name_in(line) != name]
    write_private(path, "".join(f"{line}\n" for line in [*kept, f"{name}={value}"]).encode())
    env[name] = value
    return path


def _parse(text: str, path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ConfigError(f"{path}, line {number}: write NAME=value")
        found[match[1]] = _unquoted(match[2].strip())
    return found


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _name_in(line: str) -> str:
    match = _LINE.fullmatch(line.strip())
    return match[1] if match else ""
