"""Before-images: what files held before calls changed them, so that a run can be undone.

A folder beside the journal: one file for each content, named by its hash, and one for the changes
of each call. Both are encrypted if the journal is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from evoclaw.store.databases.blob_cipher import BlobCipher, SealedValue
from evoclaw.store.databases.sqlite_file import sync_folder

CONTENT_SUFFIX, CALL_SUFFIX = ".content", ".call"


class BeforeImages:
    """The contents and changes in a folder; the oldest are deleted when there are too many."""

    def __init__(
        self,
        folder: Path,
        *,
        cipher: BlobCipher,
        max_file_bytes: int = 10_000_000,
        max_total_bytes: int = 500_000_000,
        retention_s: float = 7 * 86_400,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the folder and the limits.

        Args:
            folder: Created when needed.
            cipher: Encrypts the files.
            max_file_bytes: Of a file whose content is kept.
            max_total_bytes: Of all that is kept.
            retention_s: Seconds that a change can be undone; 0 keeps nothing.
            clock: Wall clock.
        """
        self._folder, self._cipher, self._clock = folder, cipher, clock
        self.max_file_bytes, self._max_total_bytes = max_file_bytes, max_total_bytes
        self.retention_s = retention_s
        self._lock = threading.Lock()

    async def keep(self, data: bytes) -> bool:
        """Store the content of a file; False if the disk is full."""
        return await asyncio.to_thread(self._put, sha256(data).hexdigest() + CONTENT_SUFFIX, data)

    async def content(self, digest: str) -> bytes | None:
        """The content with a hash; None if it is not stored any more, or is damaged."""
        data = await asyncio.to_thread(self._get, digest + CONTENT_SUFFIX)
        return data if data is not None and sha256(data).hexdigest() == digest else None

    async def put_call(self, call_id: str, changes: bytes) -> bool:
        """Store, or replace, the changes of a call; False if the disk is full."""
        return await asyncio.to_thread(self._put, _call_file(call_id), changes, replace=True)

    async def call(self, call_id: str) -> bytes | None:
        """The changes of a call; None if they are not stored, or cannot be read any more."""
        return await asyncio.to_thread(self._get, _call_file(call_id))

    async def prune(self) -> int:
        """Delete what has expired; returns how many files."""
        return await asyncio.to_thread(self._prune)

    def _get(self, name: str) -> bytes | None:
        path = self._folder / name
        try:
            if path.stat().st_mtime <= self._clock() - self.retention_s:
                return None
            return self._cipher.open(path.read_bytes(), path)
        except (FileNotFoundError, SealedValue):
            return None

    def _put(self, name: str, data: bytes, *, replace: bool = False) -> bool:
        path = self._folder / name
        with self._lock:
            if not replace:
                # Another process may delete it as expired at any time.
                with suppress(FileNotFoundError):
                    os.utime(path, (self._clock(), self._clock()))
                    return True
            try:
                self._write(path, self._cipher.seal(data))
            except OSError as problem:
                if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return False
            self._make_room(keep=path)
        return True

    def _write(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".draft-{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "wb", buffering=0) as file:
                file.write(data)
                os.fsync(file)
            os.utime(draft, (self._clock(), self._clock()))
            draft.rename(path)
            sync_folder(self._folder)
        finally:
            draft.unlink(missing_ok=True)

    def _make_room(self, *, keep: Path) -> None:
        files = sorted(self._files(), key=lambda found: found[1].st_mtime)
        excess = sum(about.st_size for _, about in files) - self._max_total_bytes
        for path, about in files:
            if excess <= 0:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                excess -= about.st_size

    def _prune(self) -> int:
        oldest, removed = self._clock() - self.retention_s, 0
        with self._lock:
            for path, about in self._files():
                if about.st_mtime <= oldest:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        for path in self._folder.iterdir() if self._folder.exists() else ():
            with suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return found


def _call_file(call_id: str) -> str:
    return sha256(call_id.encode()).hexdigest() + CALL_SUFFIX
