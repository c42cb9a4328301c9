"""Copies a model file from an edge: in verified chunks, resumed after an interruption."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.fleet.artifacts import chunk_bytes
from evoclaw.providers.models.download import DownloadFailed, Progress
from evoclaw.providers.models.memory import format_bytes
from evoclaw.providers.models.partial_file import PartialFile
from evoclaw.transport.wire import Outcome

CHUNK_CONCURRENCY = 4
CHUNK_TIMEOUT_S = 30.0

QueryEdge: TypeAlias = Callable[[dict[str, JSON]], Awaitable[Outcome]]
"""Sends `model_chunk` with a payload to the edge, and waits for its answer."""


class _ModelChunk(Struct, frozen=True):
    data: str
    sha256: str
    total_bytes: int


async def fetch_model(
    query: QueryEdge,
    part: PartialFile,
    digest: str,
    *,
    size_bytes: int,
    max_message_bytes: int,
    progress: Progress,
) -> None:
    """Copy what is missing of a model file.

    Args:
        query: Asks the edge for a chunk.
        part: Where to; what is there is not copied again.
        digest: Of the whole file.
        size_bytes: Of the whole file; 0 if it is not known.
        max_message_bytes: Of one message of the broker.
        progress: Called after every chunk.

    Raises:
        DownloadFailed: The edge does not have the file, or did not send it.
        DiskFull: There is too little space.
    """
    length = chunk_bytes(max_message_bytes)
    total = size_bytes
    while not total or part.size < total:
        offsets = range(part.size, total, length)[:CHUNK_CONCURRENCY] if total else [part.size]
        answers = await asyncio.gather(
            *(_chunk(query, part, digest, offset, length) for offset in offsets),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            chunk, data = answer
            if total != chunk.total_bytes:
                total = _checked_total(chunk.total_bytes, size_bytes)
                await asyncio.to_thread(part.check_space, total)
            if not data:
                raise DownloadFailed(f"the edge sent no data at byte {part.size:,}; try again")
            await asyncio.to_thread(part.add, data)
        progress(part.size, total)


def _checked_total(found: int, expected: int) -> int:
    if found <= 0 or (expected and found != expected):
        raise DownloadFailed(
            f"the file of the edge has {found:,} bytes, not {expected:,}; run `evoclaw models "
            "verify` on its machine"
        )
    return found


async def _chunk(
    query: QueryEdge, part: PartialFile, digest: str, offset: int, length: int
) -> tuple[_ModelChunk, bytes]:
    """One chunk; raises `DownloadFailed` if it did not come, or is damaged."""
    try:
        outcome = await query({"sha256": digest, "offset": offset, "length": length})
    except ToolFailure as problem:
        copied = format_bytes(part.size)
        raise DownloadFailed(
            f"the copy was interrupted after {copied}: {problem.message} Run the same command "
            "again to resume it"
        ) from None
    if outcome.error:
        raise DownloadFailed(outcome.error.rstrip("."))
    try:
        chunk = msgspec.convert(outcome.result, _ModelChunk)
        data = b64decode(chunk.data, validate=True)
    except (msgspec.ValidationError, NotBase64, ValueError):
        raise DownloadFailed("the edge's answer is not a chunk of a model; update it") from None
    if sha256(data).hexdigest() != chunk.sha256 or len(data) > length:
        raise DownloadFailed("a chunk was damaged in transit; run the same command again")
    return chunk, data
