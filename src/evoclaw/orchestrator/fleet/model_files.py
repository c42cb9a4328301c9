"""Copies model files from and to edges: in verified chunks, resumed after an interruption."""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.orchestrator.fleet.artifacts import chunk_bytes
from evoclaw.providers.models.download import DownloadFailed, Progress
from evoclaw.providers.models.memory import format_bytes
from evoclaw.providers.models.partial_file import PartialFile
from evoclaw.transport.wire import (
    MAX_MODEL_NAME_CHARS,
    ModelPush,
    ModelPushStatus,
    Outcome,
    as_payload,
)

CHUNK_CONCURRENCY = 4
CHUNK_TIMEOUT_S = 30.0
MAX_STALLED_ROUNDS = 5
"""Rounds of chunks, one after the other, of which an edge stores nothing."""

QueryEdge: TypeAlias = Callable[[dict[str, JSON]], Awaitable[Outcome]]
"""Sends `model_chunk` or `model_push` with a payload to the edge, and waits for its answer."""


class PushFailed(EvoClawError):
    """A model could not be copied to an edge; the message says whether the next attempt resumes."""


class PushedModel(Struct, frozen=True):
    """What a push did."""

    name: str
    """The name of the model on the edge."""
    was_installed: bool
    """Whether the model was there already."""
    resumed_bytes: int = 0
    """Bytes that an earlier, interrupted push had left there."""


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


async def push_model(
    query: QueryEdge,
    path: Path,
    digest: str,
    *,
    name: str,
    max_message_bytes: int,
    progress: Progress,
    note: Callable[[str], None],
) -> PushedModel:
    """Copy a model file to an edge, which verifies and installs it.

    Args:
        query: Sends a step of the push to the edge.
        path: The file; what the edge has of it is not copied again.
        digest: Of the whole file.
        name: For the model on the edge, if the edge does not know the digest.
        max_message_bytes: Of one message of the broker.
        progress: Called with the bytes that the edge has, after every round of chunks.
        note: Called with what is being waited for, for people.

    Raises:
        PushFailed: The edge does not accept the file, or did not answer.
    """
    try:
        file = path.open("rb", buffering=0)
    except OSError as problem:
        raise PushFailed(f"cannot read {path}: {problem.strerror}") from None
    with file:
        total = os.fstat(file.fileno()).st_size
        start = ModelPush("start", digest, name[:MAX_MODEL_NAME_CHARS], total)
        push = _PushSender(query, file.fileno(), start, chunk_bytes(max_message_bytes))
        return await push.run(progress, note)


class _PushClosed(Exception):
    """The edge has no such push: it was restarted, or closed the push after a while."""


class _PushSender:
    """The copy of one file to an edge; the answers of the edge say which byte is next."""

    def __init__(self, query: QueryEdge, file: int, start: ModelPush, length: int) -> None:
        self._query, self._file, self._start, self._length = query, file, start, length
        self._copied = 0

    async def run(self, progress: Progress, note: Callable[[str], None]) -> PushedModel:
        """Send what is missing, until the model is installed."""
        status = await self._send(self._start)
        resumed: int | None = None
        stalled, last_note = 0, ""
        while status.state != "installed":
            if (text := _notes(status, self._start.name)) != last_note and text:
                note(text)
            last_note = text
            if status.state != "receiving":
                status = await self._ask_again()
                continue
            resumed = status.have_bytes if resumed is None else resumed
            progress(status.have_bytes, self._start.total_bytes)
            status = await self._send_round(status.have_bytes)
            stalled = 0 if status.have_bytes > self._copied else stalled + 1
            self._copied = max(self._copied, status.have_bytes)
            if stalled > MAX_STALLED_ROUNDS:
                raise PushFailed(f"the edge stored nothing after byte {self._copied:,}; try again")
        progress(self._start.total_bytes, self._start.total_bytes)
        return PushedModel(status.name, status.was_installed, resumed or 0)

    async def _ask_again(self) -> ModelPushStatus:
        try:
            return await self._send(ModelPush("status", self._start.sha256))
        except _PushClosed:
            return await self._send(self._start)

    async def _send_round(self, offset: int) -> ModelPushStatus:
        """Send the next chunks; the status of the edge that got furthest."""
        offsets = range(offset, self._start.total_bytes, self._length)[:CHUNK_CONCURRENCY]
        answers = await asyncio.gather(
            *(self._send_chunk(offset) for offset in offsets), return_exceptions=True
        )
        found: list[ModelPushStatus] = []
        for answer in answers:
            if isinstance(answer, _PushClosed):
                return await self._send(self._start)
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return max(found, key=lambda status: status.have_bytes)

    async def _send_chunk(self, offset: int) -> ModelPushStatus:
        data = await asyncio.to_thread(os.pread, self._file, self._length, offset)
        if not data:
            raise PushFailed("the file was changed while it was copied; run the command again")
        chunk = ModelPush(
            "chunk",
            self._start.sha256,
            offset=offset,
            data=b64encode(data).decode(),
            data_sha256=sha256(data).hexdigest(),
        )
        return await self._send(chunk)

    async def _send(self, step: ModelPush) -> ModelPushStatus:
        """Send a step; raises `PushFailed` for what the next attempt could not change by itself."""
        try:
            outcome = await self._query(as_payload(step))
        except ToolFailure as problem:
            copied = format_bytes(self._copied)
            raise PushFailed(
                f"the copy was interrupted after {copied}: {problem.message} Run the same command "
                "again to resume it"
            ) from None
        if outcome.error_type == ErrorKind.CONFLICT and step.action != "start":
            raise _PushClosed
        if outcome.error_type == ErrorKind.NOT_FOUND:
            raise PushFailed(
                "the EvoClaw of the edge is too old to receive models; update it, or run `evoclaw "
                "models pull` there"
            )
        if outcome.error:
            raise PushFailed(outcome.error.rstrip("."))
        try:
            return msgspec.convert(outcome.result, ModelPushStatus)
        except msgspec.ValidationError:
            text = "the edge's answer is not the status of a push; update the older of the two"
            raise PushFailed(text) from None


def _notes(status: ModelPushStatus, name: str) -> str:
    """What is being waited for, for people; empty if it is not worth a line."""
    match status.state:
        case "waiting":
            return f"another command on the machine of the edge installs {name}; waiting for it"
        case "verifying":
            return f"the edge verifies {name}"
        case _:
            return ""
