"""Locks a data folder for one process; the kernel releases the lock when the process dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evoclaw.core.errors import ConfigError

LOCK_FILE = "lock"


@contextmanager
def locked_folder(folder: Path, refusal: str) -> Generator[None]:
    """Lock a folder, and create it if needed, until the block ends.

    Args:
        folder: The folder.
        refusal: The text of the `ConfigError` if another process has the lock.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal) from None
        yield
    finally:
        os.close(lock)
