"""`PrivateFile`: a small file that only its owner reads, changed by several processes in turn."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from evoclaw.core.errors import ConfigError


class PrivateFile:
    """A file of mode 0600, replaced as a whole under a lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def version(self) -> tuple[int, int, int] | None:
        """A value that changes with the file; None while there is none."""
        try:
            about = self.path.stat()
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns, about.st_size

    def read(self) -> bytes:
        """The whole file; empty while there is none. Raises `OSError`."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def change(self, update: Callable[[], bytes]) -> None:
        """Replace the content by that of `update`, which may read the file: no process changes it.

        Raises `ConfigError` if the file cannot be written.
        """
        try:
            with self._alone():
                content = update()
                draft = self.path.with_suffix(".new")
                file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(file, "wb") as opened:
                    os.fchmod(file, 0o600)
                    opened.write(content)
                    opened.flush()
                    os.fsync(file)
                draft.replace(self.path)
        except OSError as problem:
            raise ConfigError(f"cannot write {self.path}: {problem.strerror}") from None

    @contextmanager
    def _alone(self) -> Generator[None]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path.with_suffix(".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
