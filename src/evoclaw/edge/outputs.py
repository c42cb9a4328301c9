"""Limits the size of results: large output stays on the device as an artifact.

Every tool's result goes through here. The result that is sent has the head and the tail of the
output, its size, and the handle with which the tool `artifact` reads the rest.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool, ToolOutput
from evoclaw.core.errors import ConfigError, EvoClawError, ToolFailure
from evoclaw.core.messages import (
    JSON,
    Block,
    ErrorBlock,
    ErrorKind,
    ImageBlock,
    TextBlock,
    ToolResult,
    join_text,
    label_of,
)
from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.truncate import truncate_middle
from evoclaw.edge.live_output import TEXT_MEDIA_TYPE, OutputTee
from evoclaw.store.calls.artifacts import Artifact, ArtifactNotFound, ArtifactStore, GrepResult
from evoclaw.tools.define import tool

TOOL_NAME = "artifact"
MAX_READ_BYTES = 32_000
"""Bytes read at once."""
MAX_FETCHED_BYTES = 150_000
"""Bytes copied at once: the size of a message."""
MAX_LINES = 500

Action = Literal["read", "tail", "grep", "fetch"]


MAX_EXCERPT_BYTES = 24 * 1024
"""Bytes of the head and of the tail that are sent."""
EXCERPT_NOTE_BYTES = 512
"""Room for the note between head and tail."""
MAX_IMAGE_CHARS = 96_000
"""Characters of images that are sent with a result; larger ones stay on the device."""
MAX_DETAILS_BYTES = 32_000
"""Bytes of details."""
MAX_FAILURE_CHARS = 300
"""Characters of a tool's error message."""


class KeepLargeOutput(AroundStep):
    """Stores output that is too large to send as an artifact; sends head, tail and handle."""

    def __init__(self, artifacts: ArtifactStore, *, limit: int = 65_536) -> None:
        """`limit` is the maximum size of a result in bytes."""
        self._artifacts, self._limit = artifacts, limit

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Copy the output while the call runs, and make its result fit."""
        if execution.call.name == TOOL_NAME:
            yield
            return
        tee = OutputTee(self._artifacts, execution.progress, long=self._limit)
        execution.progress = tee
        try:
            yield
            if execution.result is not None:
                execution.result = await self._fitting(execution.result, tee)
        finally:
            await tee.close()

    async def _fitting(self, result: ToolResult, tee: OutputTee) -> ToolResult:
        result = replace(result, details=_short(result.details))
        if any(isinstance(block, ImageBlock) for block in result.blocks):
            result = await self._without_big_images(result)
        text = join_text(result.blocks)
        long = _size(text) > self._limit
        if not long and tee.total <= self._limit:
            return result
        kept = await self._kept(text, tee, long=long)
        if kept is None:
            return self._cut(result, text) if long else result
        details: dict[str, JSON] = {**result.details, "artifact": msgspec.to_builtins(kept)}
        details["artifact"]["size"] = max(tee.total, kept.size)
        if not long:
            note = TextBlock(
                f"[The complete output is kept on the device: {_how_to_read(kept, tee.total)}]"
            )
            return replace(result, blocks=(*result.blocks, note), details=details)
        shown = await self._excerpt(kept, max(tee.total, kept.size))
        if result.error is not None:
            first, _, _ = text.partition("\n")
            shown = f"{first[:MAX_FAILURE_CHARS]}\n{shown}"
        return self._shortened(result, shown, details | {"truncated": True})

    async def _kept(self, text: str, tee: OutputTee, *, long: bool) -> Artifact | None:
        """The complete output: what was written while it ran, or the result if that is longer."""
        data = text.encode("utf-8", "replace") if long else b""
        if tee.total >= len(data) and (artifact := await tee.finish()) is not None:
            return artifact
        try:
            return await self._artifacts.put(data, TEXT_MEDIA_TYPE) if long else None
        except EvoClawError:
            return None

    async def _excerpt(self, kept: Artifact, size: int) -> str:
        each = min(MAX_EXCERPT_BYTES, (self._limit - EXCERPT_NOTE_BYTES) // 2)
        longest = max(self._limit, 4 * each)
        while True:
            ends = await self._artifacts.head_and_tail(kept.handle, each)
            head, tail = (end.decode("utf-8", "replace") for end in (ends.head, ends.tail))
            left_out = size - len(ends.head) - len(ends.tail)
            note = f"[… {left_out:,} bytes left out. {_how_to_read(kept, size)} …]"
            text = f"{head}\n{note}\n{tail}" if left_out else head
            if _size(text) <= longest or each < MAX_FAILURE_CHARS:
                return text
            each //= 2  # control characters take several bytes each when encoded

    def _cut(self, result: ToolResult, text: str) -> ToolResult:
        """The truncated result when nothing can be stored."""
        limit = self._limit
        while (
            _size(shown := truncate_middle(text, limit)) > self._limit and limit > MAX_FAILURE_CHARS
        ):
            limit //= 2
        return self._shortened(result, shown, {**result.details, "truncated": True})

    def _shortened(self, result: ToolResult, text: str, details: dict[str, JSON]) -> ToolResult:
        images = tuple(block for block in result.blocks if isinstance(block, ImageBlock))
        label, error = label_of(result), result.error
        block = TextBlock(text, label) if error is None else ErrorBlock(error, text, label)
        return replace(result, blocks=(block, *images), details=details)

    async def _without_big_images(self, result: ToolResult) -> ToolResult:
        """Store the images that do not fit into a message."""
        room, blocks, images = MAX_IMAGE_CHARS, list[Block](), list[JSON]()
        for block in result.blocks:
            if isinstance(block, ImageBlock) and len(block.data) > room:
                blocks.append(await self._kept_image(block, images))
            else:
                room -= len(block.data) if isinstance(block, ImageBlock) else 0
                blocks.append(block)
        details = {**result.details, "images": images} if images else result.details
        return replace(result, blocks=tuple(blocks), details=details)

    async def _kept_image(self, image: ImageBlock, images: list[JSON]) -> TextBlock:
        """Store an image, list it, and return the note that is sent instead."""
        try:
            kept = await self._artifacts.put(b64decode(image.data), image.media_type)
        except (EvoClawError, NotBase64):
            return TextBlock(f"[an image ({image.media_type}) is too large to send]", image.label)
        images.append({"handle": kept.handle, "media_type": image.media_type, "size": kept.size})
        return TextBlock(
            f"[an image ({image.media_type}, {kept.size:,} bytes) is kept on the device as "
            f"{kept.handle}; it can be fetched by that handle]",
            image.label,
        )


def _how_to_read(kept: Artifact, size: int) -> str:
    cut = "" if kept.kept >= size else f", the first {kept.kept:,} of them kept"
    return (
        f"{size:,} bytes in all{cut}; read more with the tool `{TOOL_NAME}` and the handle "
        f"{kept.handle}: "
        "action read with offset and length, tail, or grep with a pattern."
    )


def _size(text: str) -> int:
    """The encoded size in bytes."""
    try:
        return len(msgspec.json.encode(text))
    except UnicodeEncodeError:
        return 6 * len(text)


def _short(details: dict[str, JSON]) -> dict[str, JSON]:
    """The details without long values: they are for display, and reported elsewhere."""
    try:
        sizes = {key: len(msgspec.json.encode(value)) for key, value in details.items()}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return details  # values that cannot be encoded are handled where the report is encoded
    short = dict(details)
    while sizes and sum(sizes.values()) > MAX_DETAILS_BYTES:
        longest = max(sizes, key=lambda key: sizes[key])
        short[longest] = f"[{sizes.pop(longest):,} bytes left out]"
    return short


def artifact_tool(artifacts: ArtifactStore) -> BoundTool:
    """The tool for the artifacts of this device."""

    # The label of the output is not stored: so the tool counts as outside and private.
    @tool(name=TOOL_NAME, effect="read", resources=(), max_timeout=30, outside=True, private=True)
    async def artifact(
        handle: str,
        action: Action = "read",
        offset: Annotated[int, Meta(ge=0)] = 0,
        length: Annotated[int, Meta(ge=1)] = 16_000,
        lines: Annotated[int, Meta(ge=1)] = 100,
        pattern: str = "",
        ignore_case: bool = False,
    ) -> ToolOutput:
        """Read more of a large output that is stored on the device.

        Args:
            handle: The output's handle, as its result gave it.
            action: read a part, show the tail, grep for lines, or fetch a part as base64.
            offset: For read and fetch, the first byte.
            length: For read and fetch, how many bytes, 32000 at most for read.
            lines: For tail and grep, how many lines, 500 at most.
            pattern: For grep, a regular expression of RE2's syntax.
            ignore_case: For grep, whether upper and lower case match each other.
        """
        try:
            match action:
                case "read":
                    return await _read(artifacts, handle, offset, min(length, MAX_READ_BYTES))
                case "tail":
                    data = await artifacts.tail(handle, min(lines, MAX_LINES))
                    return ToolOutput((TextBlock(_text(data)),))
                case "grep":
                    found = await artifacts.grep(
                        handle, pattern, ignore_case=ignore_case, max_lines=min(lines, MAX_LINES)
                    )
                    return ToolOutput((TextBlock(_lines(found)),))
                case "fetch":
                    return await _fetch(artifacts, handle, offset, min(length, MAX_FETCHED_BYTES))
        except ArtifactNotFound as problem:
            text = f"{problem}. Run the call again, if that is safe."
            raise ToolFailure(ErrorKind.NOT_FOUND, text) from None
        except ConfigError as problem:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"{problem}.") from None

    return artifact


async def _read(artifacts: ArtifactStore, handle: str, offset: int, length: int) -> ToolOutput:
    about = await artifacts.get(handle)
    data = await artifacts.read(handle, offset, length)
    end = offset + len(data)
    more = f"; continue at offset {end}" if end < about.kept else "; this is the end"
    note = f"[bytes {offset:,} to {end:,} of {about.kept:,}{more}]"
    details: dict[str, JSON] = {"offset": offset, "end": end, "kept": about.kept}
    return ToolOutput((TextBlock(f"{_text(data)}\n{note}"),), details)


async def _fetch(artifacts: ArtifactStore, handle: str, offset: int, length: int) -> ToolOutput:
    about = await artifacts.get(handle)
    data = await artifacts.read(handle, offset, length)
    details: dict[str, JSON] = {
        "offset": offset,
        "sha256": sha256(data).hexdigest(),
        "kept": about.kept,
        "media_type": about.media_type,
    }
    return ToolOutput((TextBlock(b64encode(data).decode()),), details)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _lines(found: GrepResult) -> str:
    lines = [f"{line.number}: {_text(line.text)}" for line in found.lines]
    if found.more:
        lines.append("[there are more lines; use a more precise pattern, or a larger `lines`]")
    return "\n".join(lines) or "(no line matches)"
