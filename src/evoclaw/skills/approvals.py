"""Which skills a person approved, by the digest of all their files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError

MAX_BYTES = 1 << 20
KEPT = 20
"""Digests of one name: several versions may be there side by side."""


class Approvals(Protocol):
    """What was approved."""

    def digests(self, name: str) -> tuple[str, ...]:
        """The digests under which a skill was approved; none if it never was."""
        ...


class _File(Struct, forbid_unknown_fields=True):
    skills: dict[str, list[str]] = {}


class ApprovalFile:
    """Approvals in a small JSON file that only its owner may change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def digests(self, name: str) -> tuple[str, ...]:
        """The digests under which a skill was approved."""
        return tuple(self._read().skills.get(name, ()))

    def pin(self, name: str, digest: str) -> None:
        """Approve a skill as it is now; what was approved of that name before stays so."""
        file = self._read()
        kept = [one for one in file.skills.get(name, []) if one != digest]
        file.skills[name] = [digest, *kept][:KEPT]
        self._write(file)

    def unpin(self, name: str) -> None:
        """Forget what was approved of a skill."""
        file = self._read()
        file.skills.pop(name, None)
        self._write(file)

    def stamp(self) -> tuple[int, ...]:
        """Changes when the file does."""
        try:
            about = self.path.stat()
        except OSError:
            return ()
        return (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)

    def _read(self) -> _File:
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return _File()
        except OSError as problem:
            raise ConfigError(f"cannot read {self.path}: {problem.strerror}") from None
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            return msgspec.json.decode(data, type=_File)
        except ValueError as problem:
            # Read as empty, it would let in whatever was changed.
            raise ConfigError(
                f"{self.path} is damaged ({problem}); remove it and approve the skills again"
            ) from None

    def _write(self, file: _File) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        data = msgspec.json.format(msgspec.json.encode(file, order="sorted"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as open_file:
                open_file.write(data + b"\n")
                open_file.flush()
                os.fsync(descriptor)
            temporary.replace(self.path)
        except OSError as problem:
            temporary.unlink(missing_ok=True)
            raise ConfigError(f"cannot write {self.path}: {problem.strerror}") from None
