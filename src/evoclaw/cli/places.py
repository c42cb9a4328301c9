"""Where this machine keeps what is not said to be elsewhere, and files for the owner's eyes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from evoclaw.core.errors import ConfigError


def data_folder(env: Mapping[str, str]) -> Path:
    """The folder of this user; it need not be there yet."""
    return Path(env.get("EVOCLAW_HOME") or "~/.evoclaw").expanduser()


def make_private(folder: Path) -> None:
    """Make a folder that only its owner may look into; one that is there is shut to others."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as problem:
        raise ConfigError(f"cannot make {folder} private: {problem.strerror}") from None


def why_not_private(path: Path) -> str:
    """Why a file or folder cannot be trusted to be its owner's alone; empty when it can."""
    found = path.stat()
    if found.st_uid != os.getuid():
        return f"{path} is of another user; take it away, or set EVOCLAW_HOME"
    if found.st_mode & 0o077:
        return f"others can read or change {path}; shut it: chmod go= {path}"
    return ""
