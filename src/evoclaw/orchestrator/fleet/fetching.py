"""Copying a big output from an edge: in pieces, each checked, going on where it was cut off."""

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

HANDLE = re.compile(r"sha256:([0-9a-f]{64})")
TOOL = "artifact"
PIECE = 150_000
"""Bytes at once, if a message has room for them."""
SPARE = 8_192
"""Bytes of a message that are not the piece."""
MOST = 1_000_000_000
"""Bytes that are copied, whatever an edge says there are."""


class FetchFailed(EvoClawError):
    """A big output could not be copied; what was copied so far is kept, and gone on from."""


class _Piece(Struct, frozen=True):
    data: bytes
    kept: int
    """Bytes there are."""


async def fetch(edge: EdgeExecutor, handle: str, path: Path, room: int, *, most: int = MOST) -> int:
    """Copy an artifact of an edge to a file; how many bytes it has.

    Args:
        edge: Where it is.
        handle: What it is called: the hash of its content, which is checked.
        path: Where to; replaced when all of it is here, and right.
        room: The most bytes that one message has.
        most: The most bytes to copy.
    """
    match = HANDLE.fullmatch(handle)
    if match is None:
        raise FetchFailed(f"{handle[:80]!r} is no handle: it is sha256: and 64 hexadecimal digits")
    part = path.with_name(f".{path.name}.{match[1][:16]}.part")
    length = max(1, min(PIECE, (room - SPARE) * 3 // 4))
    copy = await asyncio.to_thread(_Copy, part)
    try:
        while True:
            piece = await _ask(edge, handle, copy.size, length)
            if piece.kept > most:
                raise FetchFailed(f"it has {piece.kept:,} bytes; at most {most:,} are copied")
            await asyncio.to_thread(copy.add, piece.data)
            if copy.size >= piece.kept:
                break
            if not piece.data:
                raise FetchFailed(f"the edge has {piece.kept:,} bytes, but gave no more")
        await asyncio.to_thread(copy.finish, match[1], path)
    finally:
        await asyncio.to_thread(copy.close)
    return copy.size


async def _ask(edge: EdgeExecutor, handle: str, offset: int, length: int) -> _Piece:
    given = {"handle": handle, "action": "fetch", "offset": offset, "length": length}
    asked = ToolCall("fetch", TOOL, msgspec.json.encode(given).decode())
    request_id = f"{token_hex(16)}.1.0.1"
    call = prepare(asked, Toolset.of(edge.tools()), request_id=request_id)
    try:
        result = call if isinstance(call, ToolResult) else await edge.execute(call, lambda _: None)
    except ToolFailure as problem:
        raise FetchFailed(problem.message) from None
    if result.error is not None:
        why = "it keeps none" if result.error is ErrorKind.NOT_FOUND and call is result else ""
        raise FetchFailed(why or result.text)
    return _checked(result, offset)


def _checked(result: ToolResult, offset: int) -> _Piece:
    """A piece that is what it says it is."""
    kept, digest = result.details.get("kept"), result.details.get("sha256")
    try:
        data = b64decode(result.text, validate=True)
    except (NotBase64, ValueError):
        raise FetchFailed("the edge's answer is no piece of the output") from None
    if sha256(data).hexdigest() != digest or result.details.get("offset") != offset:
        raise FetchFailed("a piece was damaged on its way; try again")
    if not isinstance(kept, int) or kept < 0:
        raise FetchFailed("the edge does not say how much there is")
    return _Piece(data, kept)


class _Copy:
    """What is here so far."""

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
        """Put it in its place, if it is the right one."""
        if self._hash.hexdigest() != digest:
            self._part.unlink()
            raise FetchFailed("what came is not what the handle names; it was thrown away")
        os.fsync(self._file.fileno())
        self._part.replace(path)

    def close(self) -> None:
        self._file.close()
