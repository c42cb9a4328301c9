"""A file that is being written: kept after an interruption, and moved away when it is complete."""

from __future__ import annotations

import errno
import os
import shutil
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.providers.models.memory import format_bytes

RESERVED_BYTES = 100 * 10**6
"""Space that is left on the disk, because a full disk stops other programs."""
_READ_BYTES = 2**20


class DiskFull(EvoClawError):
    """There is no space for a file."""


class _RemoteTag(Struct, frozen=True):
    """What the server said of the file that the part belongs to."""

    url: str
    etag: str


class PartialFile:
    """The part of a file that is on disk, and its hash so far."""

    def __init__(self, path: Path) -> None:
        """Open the file, and read what an earlier attempt left in it."""
        self.path, self.size = path, 0
        self._validator_path = path.with_suffix(".part.json")
        self._hash = sha256()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
        while piece := self._file.read(_READ_BYTES):
            self._hash.update(piece)
            self.size += len(piece)

    def etag(self, url: str) -> str:
        """The entity tag of the part, if it came from this address; else empty."""
        try:
            validator = msgspec.json.decode(self._validator_path.read_bytes(), type=_RemoteTag)
        except (OSError, msgspec.MsgspecError):
            return ""
        return validator.etag if validator.url == url else ""

    def remember(self, url: str, etag: str) -> None:
        """Store the entity tag, with which a later attempt can resume."""
        self._validator_path.write_bytes(msgspec.json.encode(_RemoteTag(url, etag)))

    def restart(self) -> None:
        """Forget what is there."""
        self._file.seek(0)
        self._file.truncate()
        self._hash, self.size = sha256(), 0

    def check_space(self, total_bytes: int) -> None:
        """Raise `DiskFull` unless the rest of the file fits on the disk."""
        needed = total_bytes - self.size + RESERVED_BYTES
        if (free := shutil.disk_usage(self.path.parent).free) < needed:
            self._raise_full(f"it needs {format_bytes(needed)} more, and {format_bytes(free)} are")

    def add(self, data: bytes) -> None:
        """Append bytes; a full disk deletes the file, so that other programs have space."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.delete()
            self._raise_full("what was written has been deleted, and nothing is")
        self._hash.update(data)
        self.size += len(data)

    def _raise_full(self, what: str) -> None:
        raise DiskFull(
            f"there is too little space for the model in {self.path.parent}: {what} free; free "
            "some space, or set EVOCLAW_HOME to a folder on another disk"
        )

    def hexdigest(self) -> str:
        """The SHA-256 of what is there."""
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Write everything to the disk; the entity tag is no longer needed."""
        os.fsync(self._file.fileno())
        self._validator_path.unlink(missing_ok=True)

    def delete(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)
        self._validator_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()
