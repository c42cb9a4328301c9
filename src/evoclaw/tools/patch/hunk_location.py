"""Locates each hunk in a file and applies it.

The old lines of a hunk must be in the file exactly; only their position may differ from the line
numbers of the patch. The search works on the bytes of the file, which is never split into lines,
and has a cost limit: a patch that is made to be slow is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from evoclaw.core.errors import ToolFailure
from evoclaw.tools.patch.hunks import MAX_QUOTED_CHARS, Hunk, invalid_patch, quote

CHUNK_BYTES = 64 << 10
MAX_SEARCH_COST_BYTES = 1 << 30
"""Bytes that may be compared for the hunks of one patch, beyond reading each file once."""
SEARCH_STEP_COST_BYTES = 256
"""The fixed cost of one search step, in compared bytes."""
MAX_COMPARED_LINES = 50
"""Of a hunk that does not apply, to find the line that differs."""


@dataclass(slots=True)
class HunkSearchBudget:
    """The remaining search cost of one patch."""

    left: int = MAX_SEARCH_COST_BYTES

    def spend(self, amount: int, name: str, hunk: Hunk) -> None:
        """Spend some of it; `ToolFailure` once the limit is exceeded."""
        self.left -= amount
        if self.left < 0:
            raise invalid_patch(
                f"{name}, {hunk.label}: locating it takes too long, because the lines repeat "
                "or the line numbers are far off. Read the file again and write a new patch."
            )


@dataclass(slots=True)
class PatchedFile:
    """The content of a file with its hunks applied."""

    data: bytes
    moved: list[str] = field(default_factory=list[str])
    """Notes on hunks that were found at other lines than the patch says."""


def apply_hunks(
    data: bytes, hunks: Iterable[Hunk], name: str, budget: HunkSearchBudget
) -> PatchedFile:
    """Apply hunks to the bytes of a file.

    Args:
        data: The content of the file.
        hunks: The hunks in the order of the file.
        name: The name of the file in messages.
        budget: The search cost that is left for the patch.
    """
    locator = _HunkLocator(data, name, budget)
    view = memoryview(data)
    pieces: list[memoryview | bytes] = []
    done = 0
    for hunk in hunks:
        at, old, new = locator.locate(hunk)
        pieces += (view[done:at], new)
        done = at + old
    pieces.append(view[done:])
    return PatchedFile(b"".join(pieces), locator.moved)


class _HunkLocator:
    """Locates the hunks of a file one after the other."""

    def __init__(self, data: bytes, name: str, budget: HunkSearchBudget) -> None:
        self._data, self._name, self._budget = data, name, budget
        self._floor = self._line = 0
        """The end of the last hunk: byte offset and line number."""
        self._drift = 0
        """How many lines below its stated line the last hunk was found."""
        windows = data.count(b"\r\n")
        self._windows = windows > data.count(b"\n") - windows
        self.moved: list[str] = []

    def locate(self, hunk: Hunk) -> tuple[int, int, bytes]:
        """The offset of a hunk, the number of bytes it replaces, and the new bytes."""
        old, new = hunk.old, hunk.new
        if (
            self._windows
            and b"\r\n" not in old
            and not (hunk.exact_end and self._is_at_stated_line(hunk))
        ):
            # `read` does not show line endings, so the author of the patch cannot know them.
            old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\n", b"\r\n")
        if hunk.at_end:
            at, old, new = self._locate_at_end(hunk, old, new)
        elif hunk.lines_above is not None and not hunk.anchors:
            at, old, new = self._locate_by_line_number(hunk, old, new)
        else:
            at, old, new = self._locate_by_content(hunk, old, new)
        self._line += self._data.count(b"\n", self._floor, at + len(old))
        self._floor = at + len(old)
        return at, len(old), new

    def _is_at_stated_line(self, hunk: Hunk) -> bool:
        at, _ = self._skip(self._wanted(hunk) - self._line)
        return self._data.startswith(hunk.old, at)

    def _wanted(self, hunk: Hunk) -> int:
        return max(self._line, (hunk.lines_above or 0) + self._drift)

    def _skip(self, lines: int) -> tuple[int, int]:
        """The offset some lines below the last hunk, and how many of the lines are missing."""
        data, at, chunk = self._data, self._floor, 64
        while lines > 0 and at < len(data):
            count = data.count(b"\n", at, at + chunk)
            if count < lines:
                lines -= count
                at = min(at + chunk, len(data))
                chunk = min(2 * chunk, CHUNK_BYTES)
                continue
            for _ in range(lines):
                at = data.find(b"\n", at) + 1
            return at, 0
        return at, lines

    def _find(self, old: bytes, start: int) -> int:
        """The offset of the first occurrence at the start of a line; -1 if there is none."""
        if self._data.startswith(old, start):
            return start
        found = self._data.find(b"\n" + old, start)
        return found + 1 if found >= 0 else -1

    def _starts_line(self, at: int) -> bool:
        return at >= self._floor and (at == 0 or self._data[at - 1 : at] == b"\n")

    def _open_end(self, hunk: Hunk, old: bytes) -> int:
        """The offset of the lines if the file ends with them, without the last newline; else -1.

        Only for the patch format that cannot mark a missing newline.
        """
        bare = _without_last_newline(old)
        at = len(self._data) - len(bare)
        if hunk.exact_end or not bare or self._data.endswith(b"\n") or not self._starts_line(at):
            return -1
        return at if self._data.startswith(bare, at) else -1

    def _first_match(self, hunk: Hunk, old: bytes, start: int) -> int:
        found = self._find(old, start)
        end = self._open_end(hunk, old) if found < 0 else -1
        return found if found >= 0 else (end if end >= start else -1)

    def _replacement(self, at: int, old: bytes, new: bytes) -> tuple[int, bytes, bytes]:
        """The replaced and the new bytes; a file that ends without a newline stays so."""
        if self._data.startswith(old, at):
            return at, old, new
        return at, self._data[at:], _without_last_newline(new)

    def _locate_at_end(self, hunk: Hunk, old: bytes, new: bytes) -> tuple[int, bytes, bytes]:
        at = len(self._data) - len(old)
        if not self._starts_line(at) or not self._data.startswith(old, at):
            at = self._open_end(hunk, old)
        if at < 0:
            raise self._mismatch(hunk, old, self._data.count(b"\n") - old.count(b"\n"))
        return self._replacement(at, old, new)

    def _locate_by_line_number(
        self, hunk: Hunk, old: bytes, new: bytes
    ) -> tuple[int, bytes, bytes]:
        wanted = self._wanted(hunk)
        at, missing = self._skip(wanted - self._line)
        if not old:
            if missing or not self._starts_line(at):
                raise self._mismatch(hunk, old, wanted)
            return at, old, new
        offset = 0
        if missing or not self._data.startswith(old, at):
            found = self._first_match(hunk, old, self._floor)
            if found < 0:
                raise self._mismatch(hunk, old, wanted)
            at, offset = self._nearest(hunk, old, found, at)
            offset -= missing
        if offset:
            direction = "below" if offset > 0 else "above"
            self.moved.append(f"{hunk.label} was found {abs(offset):,} lines {direction}")
        self._drift = wanted + offset - (hunk.lines_above or 0)
        return self._replacement(at, old, new)

    def _nearest(self, hunk: Hunk, old: bytes, first: int, at: int) -> tuple[int, int]:
        """The occurrence nearest to `at`, and its distance in lines; `first` is the first one."""
        data = self._data
        if first >= at or not data.startswith(old, first):
            low, high = sorted((first, at))
            lines = data.count(b"\n", low, high)
            return first, lines if first >= at else -lines
        up = down = at
        distance = 0
        while True:
            self._budget.spend(SEARCH_STEP_COST_BYTES + len(old) // 8, self._name, hunk)
            distance += 1
            up = data.rfind(b"\n", 0, up - 1) + 1
            down = data.find(b"\n", down) + 1 if down >= 0 else -1
            down = down or -1
            above = data.startswith(old, up)
            below = down >= 0 and data.startswith(old, down)
            if above and below:
                raise invalid_patch(
                    f"{self._name}, {hunk.label}: its lines occur {distance} lines above "
                    f"and {distance} "
                    "below the stated line. Add lines around them or correct the numbers."
                )
            if above or below:
                return (up, -distance) if above else (down, distance)

    def _locate_by_content(self, hunk: Hunk, old: bytes, new: bytes) -> tuple[int, bytes, bytes]:
        start, again = self._below_anchors(hunk)
        if not old:
            return self._locate_insertion(hunk, start, again, new)
        at = self._first_match(hunk, old, start)
        if at < 0:
            raise self._mismatch(hunk, old, None)
        follows = self._data.find(b"\n", at) + 1
        if follows and (again >= 0 or not hunk.anchors):
            follows = max(follows, again)
            self._budget.spend(len(self._data) - follows, self._name, hunk)
            other = self._first_match(hunk, old, follows)
            if other >= 0:
                raise self._ambiguous(hunk, at, other)
        return self._replacement(at, old, new)

    def _below_anchors(self, hunk: Hunk) -> tuple[int, int]:
        """The offset to search from, and the next occurrence of the first anchor; -1 if none."""
        start, again = self._floor, -1
        for number, anchor in enumerate(hunk.anchors):
            at = self._anchor(hunk, anchor, start)
            if at < 0:
                raise invalid_patch(
                    f"{self._name}, {hunk.label}: no line below the hunk before it is "
                    f"{quote(anchor)}, which the '@@' line names. Read the file again."
                )
            below = self._data.find(b"\n", at) + 1
            if number == 0 and below:
                again = self._anchor(hunk, anchor, below)
            start = at if number == len(hunk.anchors) - 1 else (below or len(self._data))
        return start, again

    def _anchor(self, hunk: Hunk, anchor: bytes, start: int) -> int:
        """The first line from `start` on that equals the anchor without its indent; -1 if none."""
        data, at = self._data, start
        while (found := data.find(anchor, at)) >= 0:
            self._budget.spend(SEARCH_STEP_COST_BYTES + found - at, self._name, hunk)
            line_start = data.rfind(b"\n", 0, found) + 1
            ends = data.find(b"\n", found)
            ends = len(data) if ends < 0 else ends
            # Very long lines cannot be anchors: comparing them repeatedly would be slow.
            if ends - line_start < CHUNK_BYTES and data[line_start:ends].strip() == anchor:
                return line_start
            at = ends
        self._budget.spend(len(data) - at, self._name, hunk)
        return -1

    def _locate_insertion(
        self, hunk: Hunk, start: int, again: int, new: bytes
    ) -> tuple[int, bytes, bytes]:
        """A hunk with only new lines is inserted below its anchor."""
        if not hunk.anchors:
            if self._data:
                raise invalid_patch(
                    f"{self._name}, {hunk.label}: it has only new lines, so their "
                    "position is unknown. Add some lines of the file around them."
                )
            return 0, b"", new
        if again >= 0:
            raise self._ambiguous(hunk, start, again)
        below = self._data.find(b"\n", start) + 1
        if below:
            return below, b"", new
        ending = b"\r\n" if self._windows else b"\n"
        return len(self._data), b"", ending + _without_last_newline(new)

    def _number(self, at: int) -> int:
        return self._data.count(b"\n", 0, at) + 1

    def _ambiguous(self, hunk: Hunk, first: int, second: int) -> ToolFailure:
        return invalid_patch(
            f"{self._name}, {hunk.label}: its position is ambiguous: it fits at line "
            f"{self._number(first)} and at line {self._number(second)}. Add lines of the file "
            "around the change, or an '@@' line with the line that opens the part it is in."
        )

    def _mismatch(self, hunk: Hunk, old: bytes, wanted: int | None) -> ToolFailure:
        """The error that names the first differing line at the most likely position."""
        intro = f"{self._name}, {hunk.label} does not fit: "
        if not old:
            return invalid_patch(f"{intro}the file ends before line {wanted}. Read the file again.")
        lines = old.removesuffix(b"\n").split(b"\n", MAX_COMPARED_LINES)[:MAX_COMPARED_LINES]
        at = self._likely(lines, wanted)
        if at < 0:
            near = "its lines are not in the file"
            return invalid_patch(f"{intro}{near}. Read the file again and make the hunk from it.")
        first = at
        for line in lines:
            end = self._data.find(b"\n", at)
            end = len(self._data) if end < 0 else end
            have = self._data[at : min(end, at + len(line) + 4 * MAX_QUOTED_CHARS)]
            if have != line and (line or at < len(self._data)):
                return invalid_patch(
                    f"{intro}line {self._number(at):,} of the file is {quote(have)}, where the "
                    f"patch has {quote(line)}{_endings(have, line)}. Read the file again and make "
                    "the hunk from it; spaces count."
                )
            at = end + 1
        problem = "the file does not end there" if hunk.at_end else "not below the hunk before it"
        return invalid_patch(
            f"{intro}its lines are at line {self._number(first):,}, but {problem}, or the last of "
            "them differs by its newline. Read the file again."
        )

    def _likely(self, lines: Sequence[bytes], wanted: int | None) -> int:
        """The likely offset of a hunk: where its longest lines are; -1 if unknown."""
        longest = sorted(range(len(lines)), key=lambda index: -len(lines[index]))
        for index in longest[:5]:
            at = self._find(lines[index] + b"\n", 0) if lines[index].strip() else -1
            for _ in range(index if at >= 0 else 0):
                at = self._data.rfind(b"\n", 0, max(0, at - 1)) + 1
            if at >= 0:
                return at
        if wanted is None or not self._data:
            return -1
        self._floor = 0
        at, missing = self._skip(max(0, wanted))
        return -1 if missing else at


def _endings(have: bytes, line: bytes) -> str:
    same = have.rstrip(b"\r") == line.rstrip(b"\r")
    return " (only the line endings differ: LF and CRLF)" if same else ""


def _without_last_newline(lines: bytes) -> bytes:
    """The lines without the last newline."""
    return lines[:-2] if lines.endswith(b"\r\n") else lines.removesuffix(b"\n")
