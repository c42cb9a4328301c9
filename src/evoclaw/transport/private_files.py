"""Files and folders that only their owner may read, replaced atomically."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from evoclaw.core.errors import ConfigError


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, readable only by its owner; create its folder if needed."""
    draft = path.with_name(f".{path.name}.{token_hex(8)}.new")
    make_private_folder(path.parent)
    with _as_advice(path):
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(file)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may read, and so every missing folder above it."""
    with _as_advice(folder):
        for missing in (*reversed(folder.parents), folder):
            missing.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock on a file across processes."""
    make_private_folder(path.parent)
    with _as_advice(path):
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _as_advice(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as problem:
        raise ConfigError(
            f"cannot write {path}: {problem.strerror}; free some space or fix the permissions "
            "there, or choose another path"
        ) from None
