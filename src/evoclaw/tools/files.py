"""The tools `read`, `write` and `edit`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock, TextBlock
from evoclaw.core.ops import FileOps, FileStat
from evoclaw.core.truncate import REPLACED_BYTES_NOTICE, to_text, truncate_line
from evoclaw.tools.define import tool
from evoclaw.tools.diff import diff_bytes, is_utf8

CHUNK_BYTES = 256 << 10
MAX_LINE_CHARS = 2_000
"""Of a line that is shown."""
MAX_READ_CHARS = 50_000
"""That one call of `read` returns."""
MAX_IMAGE_BYTES = 5 << 20
MAX_EDIT_BYTES = 10 << 20
MAX_SIMILAR_TEXT_BYTES = 1 << 20
"""Of a file that are searched for text similar to the one that was not found."""
SNIFF_BYTES = 8 << 10
IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@tool("file_read", timeout=5, max_timeout=30, effect="read", resources=("path",))
async def read(
    ops: FileOps,
    path: str,
    offset: Annotated[int, Meta(ge=1)] = 1,
    limit: Annotated[int, Meta(ge=1)] = 2000,
) -> ToolOutput:
    """Read a text file, or a window of its lines. Pictures are shown as pictures.

    Args:
        ops: The machine's files.
        path: The file, relative to the workspace.
        offset: The first line to show, counted from 1.
        limit: How many lines to show at most.
    """
    about = await ops.stat(path)
    head = await ops.read(path, limit=SNIFF_BYTES)
    media_type = image_type(head)
    if media_type is not None:
        return await _read_image(ops, about, path, media_type)
    if b"\0" in head or head.startswith(UTF16_BOMS):
        hint = "It is UTF-16: convert it" if head.startswith(UTF16_BOMS) else "Look at it"
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"'{path}' is not a text file ({about.size:,} bytes). {hint} with a program for "
            "that (such as file, xxd or iconv), if you may run one.",
        )
    window = await _read_window(ops, path, offset, limit)
    if offset > max(1, window.number):
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"'{path}' has only {window.number} lines. Use a smaller offset.",
        )
    details = {"path": about.path, "size": about.size, "lines": len(window.lines)}
    return ToolOutput((TextBlock(_window_text(window, offset)),), details)


def image_type(head: bytes) -> str | None:
    """The media type of an image by its first bytes; None if models cannot be shown it."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((name for magic, name in IMAGE_SIGNATURES if head.startswith(magic)), None)


async def _read_image(ops: FileOps, about: FileStat, path: str, media_type: str) -> ToolOutput:
    if about.size > MAX_IMAGE_BYTES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The picture '{path}' has {about.size:,} bytes, more than {MAX_IMAGE_BYTES:,}. "
            "Make it smaller first.",
        )
    data = await ops.read(path, limit=MAX_IMAGE_BYTES)
    block = ImageBlock(media_type, base64.b64encode(data).decode())
    return ToolOutput((block,), {"path": about.path, "size": about.size, "media_type": media_type})


@dataclass(slots=True)
class _LineWindow:
    lines: list[str] = field(default_factory=list[str])
    number: int = 0
    """The number of lines read so far."""
    characters: int = 0
    more: bool = False
    lossy: bool = False

    def add(self, data: bytes, dropped: int, offset: int, limit: int) -> None:
        """Add the next line; the first line beyond the window sets `more`."""
        self.number += 1
        if self.number < offset:
            return
        text, lossy = to_text(data.removesuffix(b"\r"))
        line = truncate_line(text, MAX_LINE_CHARS, dropped=dropped)
        if len(self.lines) == limit or (
            self.lines and self.characters + len(line) > MAX_READ_CHARS
        ):
            self.more = True
            return
        # Cutting inside a character does not mean that the file is not UTF-8.
        self.lossy = self.lossy or (lossy and not dropped)
        self.characters += len(line) + 1
        self.lines.append(line)


class _LineSplitter:
    """Splits a file into lines; of a very long line only the beginning is kept."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._add(chunk[start:end])
            yield self._take()
            start = end + 1
        self._add(chunk[start:])

    def skip_chunk(self, chunk: bytes) -> None:
        """Skip a chunk; only its unfinished last line is kept."""
        if b"\n" in chunk:
            self._take()
        self._add(chunk[chunk.rfind(b"\n") + 1 :])

    def rest(self) -> Iterator[tuple[bytes, int]]:
        if self._kept:
            yield self._take()

    def _add(self, piece: bytes) -> None:
        room = 4 * MAX_LINE_CHARS - len(self._kept)
        self._kept += piece[:room]
        self._dropped += max(0, len(piece) - room)

    def _take(self) -> tuple[bytes, int]:
        taken = bytes(self._kept), self._dropped
        self._kept.clear()
        self._dropped = 0
        return taken


async def _read_window(ops: FileOps, path: str, offset: int, limit: int) -> _LineWindow:
    window, lines, position = _LineWindow(), _LineSplitter(), 0
    while not window.more:
        chunk = await ops.read(path, start=position, limit=CHUNK_BYTES)
        position += len(chunk)
        count = chunk.count(b"\n")
        if chunk and window.number + count + 1 < offset:
            # The whole chunk lies before the window, its unfinished last line included.
            window.number += count
            lines.skip_chunk(chunk)
            continue
        for data, dropped in lines.feed(chunk) if chunk else lines.rest():
            window.add(data, dropped, offset, limit)
            if window.more:
                break
        if not chunk:
            break
    return window


def _window_text(window: _LineWindow, offset: int) -> str:
    parts = ["\n".join(window.lines)] if window.lines else ["(the file is empty)"]
    if window.lossy:
        parts.append(REPLACED_BYTES_NOTICE)
    if window.more:
        last = offset + len(window.lines) - 1
        parts.append(f"[Lines {offset}-{last}; there is more: continue with offset={last + 1}.]")
    return "\n\n".join(parts)


@tool(
    "file_write",
    timeout=5,
    max_timeout=30,
    effect="write",
    resources=("path",),
    idempotent=True,
    acts=False,
)
async def write(ops: FileOps, path: str, content: str) -> ToolOutput:
    """Create a file or replace all of it. Missing folders are created. To change a part, use edit.

    Args:
        ops: The machine's files.
        path: The file, relative to the workspace.
        content: All of the file's new text.
    """
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, "The content is not valid text: it has lone surrogates."
        ) from None
    await ops.write(path, data)
    lines = content.count("\n") + (not content.endswith("\n") and content != "")
    text = f"Wrote {lines} lines ({len(data):,} bytes) to '{path}'."
    return ToolOutput((TextBlock(text),), {"path": path, "bytes": len(data), "lines": lines})


@tool("file_write", timeout=5, max_timeout=30, effect="write", resources=("path",), acts=False)
async def edit(
    ops: FileOps, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> ToolOutput:
    """Replace a piece of a text file. The old text must occur exactly once, spaces included.

    Args:
        ops: The machine's files.
        path: The file, relative to the workspace.
        old_string: The exact text to replace, with enough around it to be the only one.
        new_string: The text that replaces it.
        replace_all: Replace every occurrence instead.
    """
    if not old_string or old_string == new_string:
        problem = "is empty: use write to create a file" if not old_string else "equals new_string"
        raise ToolFailure(ErrorKind.INVALID_PARAMS, f"old_string {problem}.")
    text = await _read_utf8(ops, path)
    # Lone surrogates occur in no UTF-8 text, so they are not found.
    old, new = _same_endings(
        text, old_string.encode(errors="surrogatepass"), new_string.encode(errors="surrogatepass")
    )
    count = text.count(old)
    if count == 0:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, _not_found(text, path, old_string))
    if count > 1 and not replace_all:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, _ambiguous(text, path, old, count))
    if not is_utf8(new):
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, "new_string is not valid text: it has lone surrogates."
        )
    changed = text.replace(old, new)
    await ops.write(path, changed)
    line = text.count(b"\n", 0, text.index(old)) + 1
    where = f"in {count} places" if count > 1 else f"at line {line}"
    details = {
        "path": path,
        "replaced": count,
        "lines_removed": count * (old.count(b"\n") + 1),
        "lines_added": count * (new.count(b"\n") + 1) if new else 0,
        "diff": diff_bytes(path, text, changed),
    }
    return ToolOutput((TextBlock(f"Edited '{path}' {where}."),), details)


async def _read_utf8(ops: FileOps, path: str) -> bytes:
    """The bytes of a UTF-8 file, not decoded: that would take several times its size."""
    about = await ops.stat(path)
    if about.size > MAX_EDIT_BYTES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"'{path}' has {about.size:,} bytes, too many to edit. Use a program for that.",
        )
    data = await ops.read(path)
    if not is_utf8(data):
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"'{path}' is not UTF-8 text, and editing it would damage it. Convert it first.",
        )
    return data


def _same_endings(text: bytes, old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """Convert both texts to the line endings of the file, which `read` does not show."""
    windows = text.count(b"\r\n")
    if windows <= text.count(b"\n") - windows:
        return old, new
    return _windows_endings(old), _windows_endings(new)


def _windows_endings(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _not_found(text: bytes, path: str, old: str) -> str:
    # Imported here: an idle edge need not spend the memory.
    from difflib import get_close_matches

    problem = f"old_string does not occur in '{path}'. It must match exactly, spaces included. "
    lines = text[:MAX_SIMILAR_TEXT_BYTES].decode(errors="ignore").splitlines()[:10_000]
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    stripped = [line.strip() for line in lines]
    near = [wanted] if wanted in stripped else get_close_matches(wanted, stripped, n=1)
    if not near or not wanted:
        return problem + "Read the file again."
    number = stripped.index(near[0]) + 1
    return (
        problem
        + f"Something like it is at line {number}: {truncate_line(lines[number - 1], 200)!r}"
    )


def _ambiguous(text: bytes, path: str, old: bytes, count: int) -> str:
    numbers: list[str] = []
    at = -1
    while len(numbers) < 10 and (at := text.find(old, at + 1)) >= 0:
        numbers.append(str(text.count(b"\n", 0, at) + 1))
    more = ", …" if count > len(numbers) else ""
    return (
        f"old_string occurs {count} times in '{path}', at lines {', '.join(numbers)}{more}. "
        "Add lines around it to make it the only one, or set replace_all."
    )
