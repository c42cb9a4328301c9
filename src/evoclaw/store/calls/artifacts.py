"""Artifacts: large outputs, stored on the device by content hash and read there in parts."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.store.databases.sqlite_file import StoreFull, sync_folder

HANDLE = re.compile(r"sha256:([0-9a-f]{64})")
WRITE_CHUNK_BYTES = 256 << 10
"""Bytes that are buffered before a write in a thread."""
MAX_READ_BYTES = 1 << 20
MAX_LINE_BYTES = 500
"""Bytes of a line in a search result."""
DRAFT_TIMEOUT_S = 3600.0
"""Seconds after which an unfinished draft counts as abandoned."""


class ArtifactNotFound(EvoClawError):
    """There is no artifact with this handle."""

    def __init__(self, handle: str, problem: str) -> None:
        super().__init__(f"no artifact {handle[:80]!r}: {problem}")
        self.handle = handle


class Artifact(Struct, frozen=True):
    """The metadata of a large output."""

    handle: str
    """`sha256:` and the hash of the stored bytes."""
    size: int
    """Bytes of the whole output."""
    kept: int
    """Bytes that are stored."""
    media_type: str
    expires_at: float
    """Wall clock; deleted after that, or earlier if space is needed."""


class Excerpt(Struct, frozen=True):
    """The beginning and the end of an artifact; a small one is in `head` as a whole."""

    head: bytes
    tail: bytes
    left_out: int
    """Bytes between them."""
    discarded: int
    """Bytes of the output that were not stored."""


class GrepLine(Struct, frozen=True):
    """A line that matches."""

    number: int
    text: bytes
    """Without the line end; truncated if it is long."""


class GrepResult(Struct, frozen=True):
    """The matching lines of an artifact."""

    lines: list[GrepLine]
    more: bool
    """Whether the search stopped before the end of the artifact."""


class ArtifactStore:
    """The artifacts in a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        max_artifact_bytes: int = 10_000_000,
        max_total_bytes: int = 500_000_000,
        retention_s: float = 86_400,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the folder and the limits.

        Args:
            folder: Created when needed.
            max_artifact_bytes: Of one artifact; further bytes are counted and discarded.
            max_total_bytes: Of all artifacts; those that expire first are deleted to make space.
            retention_s: Seconds that an artifact is kept.
            clock: Wall clock.
        """
        self._folder, self._retention_s, self._clock = folder, retention_s, clock
        self.max_artifact_bytes, self._max_total_bytes = (
            min(max_artifact_bytes, max_total_bytes),
            max_total_bytes,
        )
        self._lock = threading.Lock()

    async def put(
        self, source: bytes | Iterable[bytes] | AsyncIterable[bytes], media_type: str
    ) -> Artifact:
        """Store bytes, or chunks of them, atomically."""
        draft = _ArtifactDraft(self._folder, self.max_artifact_bytes)
        try:
            buffer = bytearray()
            async with aclosing(_chunks(source)) as chunks:
                async for chunk in chunks:
                    buffer += chunk
                    if len(buffer) >= WRITE_CHUNK_BYTES:
                        await asyncio.to_thread(draft.add, bytes(buffer))
                        buffer.clear()
            await asyncio.to_thread(draft.add, bytes(buffer))
            return await asyncio.to_thread(self._finish, draft, media_type)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(self._folder) from None
            raise ConfigError(f"cannot store outputs in {self._folder}: {problem}") from None
        finally:
            # Removes an unfinished draft. It waits for a thread that still writes, which must not
            # find its file closed or its descriptor reused.
            await asyncio.shield(asyncio.to_thread(draft.close))

    async def get(self, handle: str) -> Artifact:
        """The metadata of an artifact."""
        return await asyncio.to_thread(self._get, handle)

    async def read(self, handle: str, offset: int, length: int) -> bytes:
        """Bytes from an offset; fewer at the end, and at most a megabyte."""
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        return await asyncio.to_thread(self._with_file, handle, _read, offset, length)

    async def head_and_tail(self, handle: str, each: int = 24_576) -> Excerpt:
        """The first and the last bytes, `each` of both."""
        metadata = await self.get(handle)
        head, tail = await asyncio.to_thread(self._with_file, handle, _head_and_tail, max(0, each))
        left_out = metadata.kept - len(head) - len(tail)
        return Excerpt(head, tail, left_out, metadata.size - metadata.kept)

    async def tail(self, handle: str, lines: int, *, max_bytes: int = 65_536) -> bytes:
        """The last lines, as many as fit."""
        return await asyncio.to_thread(self._with_file, handle, _last_lines, lines, max_bytes)

    async def grep(
        self,
        handle: str,
        pattern: str,
        *,
        ignore_case: bool = False,
        max_lines: int = 200,
        max_bytes: int = 65_536,
    ) -> GrepResult:
        """The lines that match an RE2 expression; `ConfigError` if it is invalid."""
        search = _compile(pattern, ignore_case=ignore_case)
        return await asyncio.to_thread(self._with_file, handle, _grep, search, max_lines, max_bytes)

    async def prune(self, now: float) -> int:
        """Delete expired artifacts; how many."""
        return await asyncio.to_thread(self._prune, now)

    def _path(self, handle: str) -> Path:
        match = HANDLE.fullmatch(handle)
        if match is None:
            raise ArtifactNotFound(handle, "a handle is 'sha256:' and 64 hexadecimal digits")
        return self._folder / match[1]

    def _with_file(self, handle: str, function: Callable[..., Any], *arguments: object) -> Any:
        path = self._path(handle)
        try:
            with path.open("rb") as file:
                return function(file, *arguments)
        except FileNotFoundError:
            raise ArtifactNotFound(handle, "it has expired, or was never stored here") from None

    def _get(self, handle: str) -> Artifact:
        path = self._path(handle)
        metadata = _read_metadata(path)
        if metadata is None or not path.exists():
            raise ArtifactNotFound(handle, "it has expired, or was never stored here")
        return metadata

    def _finish(self, draft: _ArtifactDraft, media_type: str) -> Artifact:
        expires_at = self._clock() + self._retention_s
        digest = draft.finish()
        artifact = Artifact(f"sha256:{digest}", draft.size, draft.kept, media_type, expires_at)
        with self._lock:
            self._make_room(draft.kept, keep=digest)
            # The metadata first: content without metadata is never found.
            metadata = _ArtifactDraft(self._folder, WRITE_CHUNK_BYTES)
            try:
                metadata.add(msgspec.json.encode(artifact))
                metadata.finish()
                metadata.rename(f"{digest}.json")
            finally:
                metadata.close()
            draft.rename(digest)
            sync_folder(self._folder)
        return artifact

    def _make_room(self, needed: int, *, keep: str) -> None:
        others = [metadata for metadata in self._all() if not metadata.handle.endswith(keep)]
        others.sort(key=lambda metadata: metadata.expires_at)
        room = self._max_total_bytes - needed - sum(metadata.kept for metadata in others)
        for metadata in others:
            if room >= 0:
                break
            self._remove(metadata.handle)
            room += metadata.kept

    def _prune(self, now: float) -> int:
        with self._lock:
            expired = [metadata.handle for metadata in self._all() if metadata.expires_at <= now]
            for handle in expired:
                self._remove(handle)
            self._sweep()
        return len(expired)

    def _sweep(self) -> None:
        """Delete what a crash left: drafts, and content or metadata without the other."""
        oldest = time.time() - DRAFT_TIMEOUT_S
        for path in self._folder.glob("*") if self._folder.exists() else ():
            name = path.name.removesuffix(".json")
            complete = (self._folder / name).exists() and (self._folder / f"{name}.json").exists()
            with suppress(FileNotFoundError):
                if not complete and path.stat().st_mtime < oldest:
                    path.unlink()

    def _all(self) -> list[Artifact]:
        found = [_read_metadata(path.with_suffix("")) for path in self._folder.glob("*.json")]
        return [metadata for metadata in found if metadata is not None]

    def _remove(self, handle: str) -> None:
        path = self._path(handle)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)


class _ArtifactDraft:
    """A file being written under a temporary name."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._path = folder / f".draft-{secrets.token_hex(8)}"
        self._keep, self._hash = keep, sha256()
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.size = self.kept = 0

    def add(self, data: bytes) -> None:
        with self._lock:
            self.size += len(data)
            data = data[: self._keep - self.kept]
            if data:
                self._hash.update(data)
                self._open().write(data)
                self.kept += len(data)

    def _open(self) -> BinaryIO:
        if self._closed:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        if self._file is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._path, flags, 0o600), "wb", buffering=0)
        return self._file

    def finish(self) -> str:
        """Flush it to the disk; its hash."""
        with self._lock:
            os.fsync(self._open())
            return self._hash.hexdigest()

    def rename(self, name: str) -> None:
        with self._lock:
            self._open()
            self._path.rename(self._path.with_name(name))

    def close(self) -> None:
        """Close the file; delete it if it was not renamed."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._path.unlink(missing_ok=True)


async def _chunks(
    source: bytes | Iterable[bytes] | AsyncIterable[bytes],
) -> AsyncGenerator[bytes, None]:
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, AsyncIterable):
        async for chunk in source:
            yield chunk
    else:
        for chunk in source:
            yield chunk


def _read_metadata(path: Path) -> Artifact | None:
    try:
        metadata = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Artifact)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return metadata if metadata.handle == f"sha256:{path.name}" else None


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    return os.pread(file.fileno(), min(length, MAX_READ_BYTES), offset)


def _head_and_tail(file: BinaryIO, each: int) -> tuple[bytes, bytes]:
    size = os.fstat(file.fileno()).st_size
    if size <= 2 * each:
        return file.read(), b""
    return os.pread(file.fileno(), each, 0), os.pread(file.fileno(), each, size - each)


def _last_lines(file: BinaryIO, lines: int, max_bytes: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    data = os.pread(file.fileno(), max_bytes, max(0, size - max_bytes))
    end = len(data) - data.endswith(b"\n")
    start = end
    for _ in range(lines):
        start = data.rfind(b"\n", 0, start)
        if start < 0:
            break
    return data[start + 1 :] if lines > 0 else b""


Search = Callable[[bytes, int], int | None]
"""The position of the next match."""


def _grep(file: BinaryIO, search: Search, max_lines: int, remaining_bytes: int) -> GrepResult:
    lines: list[GrepLine] = []
    number, rest, chunk = 1, b"", b" "
    while chunk:
        chunk = file.read(MAX_READ_BYTES)
        data = rest + chunk
        # The end of a line may be in the next chunk.
        cut = data.rfind(b"\n") + 1 if chunk else len(data)
        data, rest = data[:cut].replace(b"\r\n", b"\n"), data[cut:]
        # An expression that matches the empty text would also match after the last line.
        at, last = 0, len(data) - data.endswith(b"\n")
        while at < len(data) and (hit := search(data, at)) is not None and hit <= last:
            start = data.rfind(b"\n", 0, hit) + 1
            end = data.find(b"\n", hit)
            end = len(data) if end < 0 else end
            number += data.count(b"\n", at, start)
            text = data[start : min(end, start + MAX_LINE_BYTES)]
            remaining_bytes -= len(text)
            if len(lines) == max_lines or remaining_bytes < 0:
                return GrepResult(lines, True)
            lines.append(GrepLine(number, text))
            at, number = end + 1, number + 1
        number += data.count(b"\n", at)
    return GrepResult(lines, False)


def _compile(pattern: str, *, ignore_case: bool) -> Search:
    import re2  # pyright: ignore[reportMissingTypeStubs]

    engine = cast("Any", re2)
    options = engine.Options()
    options.log_errors, options.never_nl = False, True
    options.case_sensitive = not ignore_case
    try:
        compiled = engine.compile(b"(?m)" + pattern.encode(), options)
    except (engine.error, UnicodeEncodeError):
        raise ConfigError(
            f"not a regular expression: {pattern[:200]!r}. The syntax is RE2's: no look-around, "
            "no back-references"
        ) from None

    def search(data: bytes, at: int) -> int | None:
        found = compiled.search(data, at)
        return None if found is None else cast("int", found.start())

    return search
