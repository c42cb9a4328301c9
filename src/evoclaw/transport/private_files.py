"""Files and folders that only their owner may read, replaced atomically; files that are edited."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from evoclaw.core.errors import ConfigError

PRIVATE_MODE = 0o600


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, readable only by its owner; create its folder if needed."""
    _replace(path, data, PRIVATE_MODE)


def _replace(path: Path, data: bytes, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{token_hex(8)}.new")
    make_private_folder(path.parent)
    with _as_advice(path):
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fchmod(file, mode)
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


class EditedFile:
    """A file that is locked while it is edited; a symbolic link stays one."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._content = self._read()
        """None if the file does not exist."""

    @property
    def content(self) -> bytes:
        """What the file holds; empty if it does not exist."""
        return self._content or b""

    def replace(self, data: bytes) -> None:
        """Replace the file atomically and keep its mode.

        Raises `ConfigError` if the file is not the one that was read: an editor, for example, does
        not know of the lock.
        """
        if self._read() != self._content:
            raise ConfigError(
                f"another program changed {self._path} meanwhile, so nothing was written to it; "
                "try again"
            )
        mode = PRIVATE_MODE
        if self._content is not None:
            mode = self._path.stat().st_mode & 0o777
        _replace(self._path, data, mode)
        self._content = data

    def _read(self) -> bytes | None:
        try:
            # Checked before opening: opening a named pipe would block.
            return self._path.read_bytes() if self._path.is_file() else None
        except OSError as problem:
            raise ConfigError(f"cannot read {self._path}: {problem.strerror}") from None


@contextmanager
def edited_file(path: Path) -> Generator[EditedFile]:
    """Lock a file, across processes, while the block edits it."""
    with locked(path.resolve()):
        yield EditedFile(path)


@contextmanager
def _as_advice(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as problem:
        raise ConfigError(
            f"cannot write {path}: {problem.strerror}; free some space or fix the permissions "
            "there, or choose another path"
        ) from None
