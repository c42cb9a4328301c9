"""The tool `artifact`: reading on in a big output, where it is."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Annotated, Literal

from msgspec import Meta

from evoclaw.core.bound_tools import BoundTool, ToolOutput
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.store.calls.artifacts import ArtifactNotFound, ArtifactStore, GrepResult
from evoclaw.tools.define import tool

TOOL_NAME = "artifact"
MAX_READ_BYTES = 32_000
"""Bytes read at once."""
MAX_FETCHED_BYTES = 150_000
"""Bytes copied at once: as much as one message carries."""
MAX_LINES = 500

Action = Literal["read", "tail", "grep", "fetch"]


def artifact_tool(artifacts: ArtifactStore) -> BoundTool:
    """The tool for the artifacts of this device."""

    # Whose output it was is not kept: so it is taken for anybody's.
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
        """Read on in a big output that was kept on the device.

        Args:
            handle: The output's handle, as its result gave it.
            action: read a part, show the tail, grep for lines, or fetch a part as base64.
            offset: For read and fetch, the first byte.
            length: For read and fetch, how many bytes, 32000 at most for read.
            lines: For tail and grep, how many lines, 500 at most.
            pattern: For grep, a regular expression of RE2's syntax.
            ignore_case: For grep, whether capital letters are the same as small ones.
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
            text = f"{problem}. Run what made it again, if that does no harm."
            raise ToolFailure(ErrorKind.NOT_FOUND, text) from None
        except ConfigError as problem:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"{problem}.") from None

    return artifact


async def _read(artifacts: ArtifactStore, handle: str, offset: int, length: int) -> ToolOutput:
    about = await artifacts.get(handle)
    data = await artifacts.read(handle, offset, length)
    end = offset + len(data)
    more = f"; read on at offset {end}" if end < about.kept else "; this is the end"
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
    said = [f"{line.number}: {_text(line.text)}" for line in found.lines]
    if found.more:
        said.append("[there are more; be more precise, or ask for more lines]")
    return "\n".join(said) or "(no line matches)"
