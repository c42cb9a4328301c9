"""Copies artifacts from edges: in verified chunks, resumed after an interruption."""

from __future__ import annotations

import asyncio
import os
import re
from base64 import b64decode
from binascii import Error as NotBase64
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import msgspec
from msgspec import Struct

from evoclaw.core.calls import prepare
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolCall, ToolResult
from evoclaw.core.toolset import Toolset
from evoclaw.executors.edge import EdgeExecutor

HANDLE_PATTERN = re.compile(r"sha256:([0-9a-f]{64})")
ARTIFACT_TOOL = "artifact"
CHUNK_BYTES = 150_000
"""Of one chunk, if a message can hold them."""
MESSAGE_OVERHEAD_BYTES = 8_192
"""Of a message, beside the chunk."""
MAX_ARTIFACT_BYTES = 1_000_000_000
"""A larger artifact is not copied."""


class FetchFailed(EvoClawError):
    """An artifact could not be copied; the next attempt resumes with what was copied so far."""


class _ArtifactChunk(Struct, frozen=True):
    data: bytes
    total_bytes: int
    """Of the whole artifact."""


async def fetch_artifact(
    edge: EdgeExecutor,
    handle: str,
    path: Path,
    max_message_bytes: int,
    *,
    max_bytes: int = MAX_ARTIFACT_BYTES,
) -> int:
    """Copy an artifact of an edge to a file; return its size in bytes.

    Args:
        edge: The edge that stores it.
        handle: Its name: the hash of its content, which is verified.
        path: The file; replaced once the artifact is complete and verified.
        max_message_bytes: Of one message of the broker.
        max_bytes: Of the artifact; a larger one is not copied.
    """
    digest, length = _digest_of(handle), chunk_bytes(max_message_bytes)
    part = path.with_name(f".{path.name}.{digest[:16]}.part")
    copy = await asyncio.to_thread(_PartialDownload, part)
    try:
        while True:
            piece = await _request_chunk(edge, handle, copy.size, length)
            await asyncio.to_thread(copy.add, piece.data)
            if _is_complete(piece, copy.size, max_bytes):
                break
        await asyncio.to_thread(copy.finish, digest, path)
    finally:
        await asyncio.to_thread(copy.close)
    return copy.size


async def fetch_bytes(
    edge: EdgeExecutor, handle: str, max_message_bytes: int, *, max_bytes: int
) -> bytes:
    """A small artifact of an edge, verified, in memory.

    Args:
        edge: The edge that stores it.
        handle: Its name: the hash of its content, which is verified.
        max_message_bytes: Of one message of the broker.
        max_bytes: Of the artifact; a larger one is not copied.
    """
    digest, length = _digest_of(handle), chunk_bytes(max_message_bytes)
    data = b""
    while True:
        piece = await _request_chunk(edge, handle, len(data), length)
        data += piece.data
        if _is_complete(piece, len(data), max_bytes):
            break
    if sha256(data).hexdigest() != digest:
        raise FetchFailed("the copied content does not match the handle; try again")
    return data


def _digest_of(handle: str) -> str:
    match = HANDLE_PATTERN.fullmatch(handle)
    if match is None:
        raise FetchFailed(
            f"invalid handle {handle[:80]!r}: expected 'sha256:' and 64 hexadecimal digits"
        )
    return match[1]


def chunk_bytes(max_message_bytes: int) -> int:
    """The bytes of a chunk that fits into one message of the broker, as base64."""
    return max(1, min(CHUNK_BYTES, (max_message_bytes - MESSAGE_OVERHEAD_BYTES) * 3 // 4))


def _is_complete(piece: _ArtifactChunk, size: int, max_bytes: int) -> bool:
    """Whether a chunk was the last one; raise `FetchFailed` for a size that cannot be copied."""
    if piece.total_bytes > max_bytes:
        raise FetchFailed(
            f"the artifact has {piece.total_bytes:,} bytes; at most {max_bytes:,} can be copied"
        )
    if size < piece.total_bytes and not piece.data:
        raise FetchFailed(
            f"the edge sent no more data at byte {size:,} of {piece.total_bytes:,}; try again"
        )
    return size >= piece.total_bytes


async def _request_chunk(
    edge: EdgeExecutor, handle: str, offset: int, length: int
) -> _ArtifactChunk:
    arguments = {"handle": handle, "action": "fetch", "offset": offset, "length": length}
    asked = ToolCall("fetch", ARTIFACT_TOOL, msgspec.json.encode(arguments).decode())
    request_id = f"{token_hex(16)}.1.0.1"
    call = prepare(asked, Toolset.of(edge.tools()), request_id=request_id)
    try:
        result = call if isinstance(call, ToolResult) else await edge.execute(call, lambda _: None)
    except ToolFailure as problem:
        raise FetchFailed(problem.message) from None
    if result.error is not None:
        why = (
            "the edge stores no artifacts"
            if result.error is ErrorKind.NOT_FOUND and call is result
            else ""
        )
        raise FetchFailed(why or result.text)
    return _verified_chunk(result, offset)


def _verified_chunk(result: ToolResult, offset: int) -> _ArtifactChunk:
    """The chunk in a result; raise `FetchFailed` if it is damaged."""
    kept, digest = result.details.get("kept"), result.details.get("sha256")
    try:
        data = b64decode(result.text, validate=True)
    except (NotBase64, ValueError):
        raise FetchFailed("the edge's answer is not a chunk of the artifact") from None
    if sha256(data).hexdigest() != digest or result.details.get("offset") != offset:
        raise FetchFailed("a chunk was damaged in transit; try again")
    if not isinstance(kept, int) or kept < 0:
        raise FetchFailed("the edge's answer does not contain the size of the artifact")
    return _ArtifactChunk(data, kept)


class _PartialDownload:
    """The file with what was copied so far."""

    def __init__(self, part: Path) -> None:
        self._part, self._hash, self.size = part, sha256(), 0
        part.parent.mkdir(parents=True, exist_ok=True)
        if part.exists():
            with part.open("rb") as before:
                while piece := before.read(1 << 20):
                    self._hash.update(piece)
                    self.size += len(piece)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.fdopen(os.open(part, flags, 0o600), "ab", buffering=0)

    def add(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def finish(self, digest: str, path: Path) -> None:
        """Move the file to its path if its hash is right."""
        if self._hash.hexdigest() != digest:
            self._part.unlink()
            raise FetchFailed(
                "the copied content does not match the handle and was deleted; try again"
            )
        os.fsync(self._file.fileno())
        self._part.replace(path)

    def close(self) -> None:
        self._file.close()
