"""The data folder of this user, and checks that files are private to their owner."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from evoclaw.core.errors import ConfigError


def data_folder(env: Mapping[str, str]) -> Path:
    """The data folder of this user; it may not exist yet."""
    return Path(env.get("EVOCLAW_HOME") or "~/.evoclaw").expanduser()


def make_private(folder: Path) -> None:
    """Create a folder that only its owner may read; an existing one is closed to others."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as problem:
        raise ConfigError(f"cannot make {folder} private: {problem.strerror}") from None


def prepare_data_folder(env: Mapping[str, str]) -> None:
    """Create the data folder, private to its owner, before anything is put into it.

    `~/.evoclaw` of an earlier release is closed to others; the mode of an existing folder that
    `EVOCLAW_HOME` names is its owner's choice.
    """
    folder = data_folder(env)
    if env.get("EVOCLAW_HOME") and folder.exists():
        return
    # A folder that cannot be created is reported by the command that needs it, if it does.
    with suppress(ConfigError):
        make_private(folder)


def privacy_problem(path: Path) -> str:
    """Why a file or folder is not private to this user; empty if it is."""
    status = path.stat()
    if status.st_uid != os.getuid():
        return f"{path} belongs to another user; remove it, or set EVOCLAW_HOME to another folder"
    if status.st_mode & 0o077:
        return f"other users can read or change {path}; run `chmod go= {path}`"
    return ""
