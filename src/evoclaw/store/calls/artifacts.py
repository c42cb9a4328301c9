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
from evoclaw.store.databases.opening import StoreFull, sync_folder

HANDLE = re.compile(r"sha256:([0-9a-f]{64})")
PIECE = 256 << 10
"""Bytes that are buffered before a write in a thread."""
LARGEST_READ = 1 << 20
LONGEST_LINE = 500
"""Bytes of a line in a search result."""
ABANDONED_AFTER = 3600.0
"""Seconds after which an unfinished draft counts as abandoned."""


class NoArtifact(EvoClawError):
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


class Line(Struct, frozen=True):
    """A line that matches."""

    number: int
    text: bytes
    """Without the line end; truncated if it is long."""


class Found(Struct, frozen=True):
    """The matching lines of an artifact."""

    lines: list[Line]
    more: bool
    """Whether the search stopped before the end of the artifact."""


class Artifacts:
    """The artifacts in a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        keep_bytes: int = 10_000_000,
        total_bytes: int = 500_000_000,
        life: float = 86_400,
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
        self._folder, self._life, self._clock = folder, life, clock
        self.keep_bytes, self._total_bytes = min(keep_bytes, total_bytes), total_bytes
        self._changing = threading.Lock()

    async def put(
        self, source: bytes | Iterable[bytes] | AsyncIterable[bytes], media_type: str
    ) -> Artifact:
        """Store bytes, or chunks of them, atomically."""
        draft = _Draft(self._folder, self.keep_bytes)
        try:
            buffer = bytearray()
            async with aclosing(_each(source)) as chunks:
                async for chunk in chunks:
                    buffer += chunk
                    if len(buffer) >= PIECE:
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
        return await asyncio.to_thread(self._with, handle, _read, offset, length)

    async def head_and_tail(self, handle: str, each: int = 24_576) -> Excerpt:
        """The first and the last bytes, `each` of both."""
        metadata = await self.get(handle)
        head, tail = await asyncio.to_thread(self._with, handle, _ends, max(0, each))
        left_out = metadata.kept - len(head) - len(tail)
        return Excerpt(head, tail, left_out, metadata.size - metadata.kept)

    async def tail(self, handle: str, lines: int, *, most_bytes: int = 65_536) -> bytes:
        """The last lines, as many as fit."""
        return await asyncio.to_thread(self._with, handle, _last_lines, lines, most_bytes)

    async def grep(
        self,
        handle: str,
        pattern: str,
        *,
        ignore_case: bool = False,
        most: int = 200,
        most_bytes: int = 65_536,
    ) -> Found:
        """The lines that match an RE2 expression; `ConfigError` if it is invalid."""
        search = _compiled(pattern, ignore_case=ignore_case)
        return await asyncio.to_thread(self._with, handle, _grep, search, most, most_bytes)

    async def prune(self, now: float) -> int:
        """Delete expired artifacts; how many."""
        return await asyncio.to_thread(self._prune, now)

    def _path(self, handle: str) -> Path:
        match = HANDLE.fullmatch(handle)
        if match is None:
            raise NoArtifact(handle, "a handle is 'sha256:' and 64 hexadecimal digits")
        return self._folder / match[1]

    def _with(self, handle: str, function: Callable[..., Any], *arguments: object) -> Any:
        path = self._path(handle)
        try:
            with path.open("rb") as file:
                return function(file, *arguments)
        except FileNotFoundError:
            raise NoArtifact(handle, "it has expired, or was never stored here") from None

    def _get(self, handle: str) -> Artifact:
        path = self._path(handle)
        metadata = _about(path)
        if metadata is None or not path.exists():
            raise NoArtifact(handle, "it has expired, or was never stored here")
        return metadata

    def _finish(self, draft: _Draft, media_type: str) -> Artifact:
        expires_at = self._clock() + self._life
        digest = draft.finish()
        artifact = Artifact(f"sha256:{digest}", draft.size, draft.kept, media_type, expires_at)
        with self._changing:
            self._make_room(draft.kept, besides=digest)
            # The metadata first: content without metadata is never found.
            metadata = _Draft(self._folder, PIECE)
            try:
                metadata.add(msgspec.json.encode(artifact))
                metadata.finish()
                metadata.rename(f"{digest}.json")
            finally:
                metadata.close()
            draft.rename(digest)
            sync_folder(self._folder)
        return artifact

    def _make_room(self, needed: int, *, besides: str) -> None:
        others = [metadata for metadata in self._all() if not metadata.handle.endswith(besides)]
        others.sort(key=lambda metadata: metadata.expires_at)
        room = self._total_bytes - needed - sum(metadata.kept for metadata in others)
        for metadata in others:
            if room >= 0:
                break
            self._remove(metadata.handle)
            room += metadata.kept

    def _prune(self, now: float) -> int:
        with self._changing:
            expired = [metadata.handle for metadata in self._all() if metadata.expires_at <= now]
            for handle in expired:
                self._remove(handle)
            self._sweep()
        return len(expired)

    def _sweep(self) -> None:
        """Delete what a crash left: drafts, and content or metadata without the other."""
        oldest = time.time() - ABANDONED_AFTER
        for path in self._folder.glob("*") if self._folder.exists() else ():
            name = path.name.removesuffix(".json")
            complete = (self._folder / name).exists() and (self._folder / f"{name}.json").exists()
            with suppress(FileNotFoundError):
                if not complete and path.stat().st_mtime < oldest:
                    path.unlink()

    def _all(self) -> list[Artifact]:
        found = [_about(path.with_suffix("")) for path in self._folder.glob("*.json")]
        return [metadata for metadata in found if metadata is not None]

    def _remove(self, handle: str) -> None:
        path = self._path(handle)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)


class _Draft:
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


async def _each(
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


def _about(path: Path) -> Artifact | None:
    try:
        metadata = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Artifact)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return metadata if metadata.handle == f"sha256:{path.name}" else None


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    return os.pread(file.fileno(), min(length, LARGEST_READ), offset)


def _ends(file: BinaryIO, each: int) -> tuple[bytes, bytes]:
    size = os.fstat(file.fileno()).st_size
    if size <= 2 * each:
        return file.read(), b""
    return os.pread(file.fileno(), each, 0), os.pread(file.fileno(), each, size - each)


def _last_lines(file: BinaryIO, lines: int, most_bytes: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    data = os.pread(file.fileno(), most_bytes, max(0, size - most_bytes))
    end = len(data) - data.endswith(b"\n")
    start = end
    for _ in range(lines):
        start = data.rfind(b"\n", 0, start)
        if start < 0:
            break
    return data[start + 1 :] if lines > 0 else b""


Search = Callable[[bytes, int], int | None]
"""The position of the next match."""


def _grep(file: BinaryIO, search: Search, most: int, room: int) -> Found:
    lines: list[Line] = []
    number, rest, chunk = 1, b"", b" "
    while chunk:
        chunk = file.read(LARGEST_READ)
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
            text = data[start : min(end, start + LONGEST_LINE)]
            room -= len(text)
            if len(lines) == most or room < 0:
                return Found(lines, True)
            lines.append(Line(number, text))
            at, number = end + 1, number + 1
        number += data.count(b"\n", at)
    return Found(lines, False)


def _compiled(pattern: str, *, ignore_case: bool) -> Search:
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
