"""Searching one file for a regular expression, piece by piece."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from evoclaw.core.ops import FileOps
from evoclaw.tools.patterns import Regex
from evoclaw.tools.truncate import cut_line, to_text

PIECE = 1 << 20
SMALL = 64 << 10
"""Bytes that are searched without the trip to a thread."""
LONGEST_LINE = 500
"""Characters of a line that are shown."""
SNIFFED = 8 << 10
UNBOUNDED = 1 << 60
"""As many lines as there are."""


@dataclass(frozen=True, slots=True)
class Grep:
    """What is looked for."""

    regex: Regex
    context: int
    most: int
    """Lines found in one file after which its search ends."""
    first_only: bool = False
    literal: bytes = b""
    """What every match has in it."""
    whole: bool = False
    """Whether the expression is nothing but that."""

    def may_be_in(self, data: bytes) -> bool:
        """Whether a whole file has anything to find."""
        if self.literal not in data:
            return False
        if self.whole:
            return True
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        return self.regex.find(data) is not None


@dataclass(slots=True)
class Found:
    """What was found in one file."""

    path: str
    lines: list[str] = field(default_factory=list[str])
    count: int = 0
    spaced: bool = False
    """Whether groups of lines are kept apart."""


async def search_file(ops: FileOps, path: str, asked: Grep, late: Callable[[], bool]) -> Found:
    """Search a file's text; one that is not text has nothing to find."""
    work = searching(path, asked, late, PIECE)
    try:
        start, limit = next(work)
        while True:
            piece = await ops.read(path, start=start, limit=limit)
            if len(piece) <= SMALL:
                start, limit = work.send(piece)
            else:
                start, limit = await asyncio.to_thread(_send, work, piece)
    except StopIteration as done:
        return done.value
    except _Ended as done:
        return done.found


class _Ended(Exception):
    """A search that ran in a thread has its result."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found


def searching(
    path: str, asked: Grep, late: Callable[[], bool], first: int
) -> Generator[tuple[int, int], bytes, Found]:
    """Search a file whose bytes somebody else reads: yields where from and how many it wants."""
    scan = _Scan(Found(path, spaced=asked.context > 0), asked)
    position, rest, limit = 0, b"", first
    while not scan.done and not late():
        piece = yield position, limit
        if position == 0 and b"\0" in piece[:SNIFFED]:
            break
        position += len(piece)
        last = len(piece) < limit
        data, rest = _whole_lines(rest + piece, last=last)
        scan.take(data)
        if last:
            break
        limit = PIECE
    return scan.found


def _send(work: Generator[tuple[int, int], bytes, Found], piece: bytes) -> tuple[int, int]:
    try:
        return work.send(piece)
    except StopIteration as done:
        # A thread's future cannot carry it.
        raise _Ended(done.value) from None


def _whole_lines(data: bytes, *, last: bool) -> tuple[bytes, bytes]:
    """Split off an unfinished last line, unless it is so long that it is searched as it is."""
    end = data.rfind(b"\n") + 1
    return (data, b"") if last or not end else (data[:end], data[end:])


class _Scan:
    """Goes through a file; knows the line number and what context is still to be shown."""

    def __init__(self, found: Found, asked: Grep) -> None:
        self.found, self._asked = found, asked
        self._number = 1
        """Of the line that comes next."""
        self._before: deque[tuple[int, bytes]] = deque(maxlen=asked.context or None)
        self._after = 0
        """How many lines of context are still to be shown."""
        self._shown = 0
        """The number of the last line shown."""

    @property
    def done(self) -> bool:
        full = self.found.count >= self._asked.most and not self._after
        return full or (self._asked.first_only and self.found.count > 0)

    def take(self, data: bytes) -> None:
        """Search the next whole lines."""
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        at = 0
        while not self.done:
            wants_more = self.found.count < self._asked.most
            hit = self._asked.regex.find(data, at) if wants_more and at < len(data) else None
            start = len(data) if hit is None else data.rfind(b"\n", 0, hit) + 1
            self._pass_over(data, at, start)
            if hit is None:
                return
            end = data.find(b"\n", hit)
            end = len(data) if end < 0 else end
            self._hit(data[start:end])
            at = end + 1

    def _pass_over(self, data: bytes, start: int, end: int) -> None:
        """Lines without a match: shown after one that has, remembered for the next."""
        if not self._asked.context:
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
        self._after = self._asked.context

    def _show(self, number: int, line: bytes, mark: str) -> None:
        if self._shown and number > self._shown + 1 and self._asked.context:
            self.found.lines.append("--")
        self._shown = number
        text = cut_line(to_text(line[: 4 * LONGEST_LINE])[0], LONGEST_LINE, dropped=0)
        self.found.lines.append(f"{self.found.path}{mark}{number}{mark}{text}")
