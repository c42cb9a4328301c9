"""Searches one file for a regular expression, chunk by chunk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from evoclaw.core.ops import FileOps
from evoclaw.core.truncate import to_text, truncate_line
from evoclaw.tools.patterns import Regex

CHUNK_BYTES = 1 << 20
MAX_INLINE_SEARCH_BYTES = 64 << 10
"""A chunk up to this size is searched on the event loop, a larger one in a thread."""
MAX_LINE_CHARS = 500
"""Of a line that is shown."""
SNIFF_BYTES = 8 << 10
UNBOUNDED = 1 << 60
"""No limit on the number of results."""


@dataclass(frozen=True, slots=True)
class GrepQuery:
    """What to search for."""

    regex: Regex
    context: int
    max_lines: int
    """Matching lines after which the search of a file ends."""
    first_only: bool = False
    literal: bytes = b""
    """A literal that every match contains."""
    is_literal: bool = False
    """Whether the expression is that literal."""

    def may_match(self, data: bytes) -> bool:
        """Whether the complete content of a file has a match."""
        if self.literal not in data:
            return False
        if self.is_literal:
            return True
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        return self.regex.find(data) is not None


@dataclass(slots=True)
class FileMatches:
    """The matches of one file."""

    path: str
    lines: list[str] = field(default_factory=list[str])
    count: int = 0
    separate_groups: bool = False
    """Whether `--` separates groups of lines."""


async def search_file(
    ops: FileOps, path: str, query: GrepQuery, is_expired: Callable[[], bool]
) -> FileMatches:
    """Search the text of a file; a binary file has no matches."""
    work = scan_file(path, query, is_expired, CHUNK_BYTES)
    try:
        start, limit = next(work)
        while True:
            piece = await ops.read(path, start=start, limit=limit)
            if len(piece) <= MAX_INLINE_SEARCH_BYTES:
                start, limit = work.send(piece)
            else:
                start, limit = await asyncio.to_thread(_send, work, piece)
    except StopIteration as done:
        return done.value
    except _SearchFinished as done:
        return done.found


class _SearchFinished(Exception):
    """Carries the result of a search out of a thread."""

    def __init__(self, found: FileMatches) -> None:
        super().__init__()
        self.found = found


def scan_file(
    path: str, query: GrepQuery, is_expired: Callable[[], bool], first_limit: int
) -> Generator[tuple[int, int], bytes, FileMatches]:
    """Search a file whose bytes the caller reads: yields the offset and length of each read."""
    scan = _LineScanner(FileMatches(path, separate_groups=query.context > 0), query)
    position, rest, limit = 0, b"", first_limit
    while not scan.done and not is_expired():
        piece = yield position, limit
        if position == 0 and b"\0" in piece[:SNIFF_BYTES]:
            break
        position += len(piece)
        last = len(piece) < limit
        data, rest = _whole_lines(rest + piece, last=last)
        scan.feed(data)
        if last:
            break
        limit = CHUNK_BYTES
    return scan.found


def _send(work: Generator[tuple[int, int], bytes, FileMatches], piece: bytes) -> tuple[int, int]:
    try:
        return work.send(piece)
    except StopIteration as done:
        # A future cannot carry a StopIteration.
        raise _SearchFinished(done.value) from None


def _whole_lines(data: bytes, *, last: bool) -> tuple[bytes, bytes]:
    """Split off an unfinished last line, unless the data has no complete line."""
    end = data.rfind(b"\n") + 1
    return (data, b"") if last or not end else (data[:end], data[end:])


class _LineScanner:
    """Scans the lines of a file; tracks the line number and the context still to be shown."""

    def __init__(self, found: FileMatches, query: GrepQuery) -> None:
        self.found, self._query = found, query
        self._number = 1
        """The number of the next line."""
        self._before: deque[tuple[int, bytes]] = deque(maxlen=query.context or None)
        self._after = 0
        """Context lines still to be shown after the last match."""
        self._shown = 0
        """The number of the last line shown."""

    @property
    def done(self) -> bool:
        full = self.found.count >= self._query.max_lines and not self._after
        return full or (self._query.first_only and self.found.count > 0)

    def feed(self, data: bytes) -> None:
        """Search the next complete lines."""
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        at = 0
        while not self.done:
            wants_more = self.found.count < self._query.max_lines
            hit = self._query.regex.find(data, at) if wants_more and at < len(data) else None
            start = len(data) if hit is None else data.rfind(b"\n", 0, hit) + 1
            self._skip_lines(data, at, start)
            if hit is None:
                return
            end = data.find(b"\n", hit)
            end = len(data) if end < 0 else end
            self._hit(data[start:end])
            at = end + 1

    def _skip_lines(self, data: bytes, start: int, end: int) -> None:
        """Skip lines without a match: shown as context after one, or kept as context before."""
        if not self._query.context:
            self._number += data.count(b"\n", start, end)
            return
        passed = data[start:end].removesuffix(b"\n")
        for line in passed.split(b"\n") if end > start else ():
            if self._after:
                self._after -= 1
                self._show(self._number, line, "-")
            else:
                self._before.append((self._number, line))
            self._number += 1

    def _hit(self, line: bytes) -> None:
        for number, earlier in self._before:
            self._show(number, earlier, "-")
        self._before.clear()
        self._show(self._number, line, ":")
        self.found.count += 1
        self._number += 1
        self._after = self._query.context

    def _show(self, number: int, line: bytes, mark: str) -> None:
        if self._shown and number > self._shown + 1 and self._query.context:
            self.found.lines.append("--")
        self._shown = number
        text = truncate_line(to_text(line[: 4 * MAX_LINE_CHARS])[0], MAX_LINE_CHARS, dropped=0)
        self.found.lines.append(f"{self.found.path}{mark}{number}{mark}{text}")
