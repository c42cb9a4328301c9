"""Hands on installed model files to other machines, in chunks, by the digest of their content.

A read-only command rather than the tool `artifact`: the journals of both sides keep the result of a
tool call, and a model would fill them with its thousands of chunks.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.transport.wire import Command, WireError, convert

MAX_CHUNK_BYTES = 500_000

FindModelFile: TypeAlias = Callable[[str], Path | None]
"""A digest -> the installed file with that content; None if there is none."""


class ModelChunkRequest(Struct, frozen=True):
    """Which part of which file is asked for."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=1, le=MAX_CHUNK_BYTES)]


def no_model_files(digest: str) -> Path | None:
    """For a device that has no models folder."""
    return None


async def model_chunk(find: FindModelFile, command: Command) -> JSON:
    """A chunk of a model file, its digest, and the size of the file."""
    try:
        wanted = convert(command.payload, ModelChunkRequest)
    except WireError as problem:
        raise ToolFailure(
            problem.kind, f"The request for a model cannot be read: {problem}."
        ) from None
    path = find(wanted.sha256)
    if path is None:
        raise ToolFailure(
            ErrorKind.NOT_FOUND,
            f"This edge has no model with the digest {wanted.sha256}; see `evoclaw models` there.",
        )
    data, total = await asyncio.to_thread(_read, path, wanted.offset, wanted.length)
    return {
        "data": b64encode(data).decode(),
        "sha256": sha256(data).hexdigest(),
        "total_bytes": total,
    }


def _read(path: Path, offset: int, length: int) -> tuple[bytes, int]:
    try:
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset), os.fstat(file.fileno()).st_size
    except OSError as problem:
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED, f"The model cannot be read: {problem.strerror}."
        ) from None
