"""Unified diffs of two versions of a file, for people, in bounded time and memory.

A large file is compared by its bytes, without copies.
"""

from __future__ import annotations

import codecs

MAX_LINE_DIFF_LINES = 2_000
"""Of the longer version; above it the diff is a single hunk."""
MAX_DIFF_CHARS = 20_000
CONTEXT_LINES = 3


def unified_diff(path: str, old: str, new: str) -> str:
    """The unified diff of two versions of a text."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) <= MAX_LINE_DIFF_LINES:
        # Imported here: an idle edge need not spend the memory.
        import difflib

        lines = list(difflib.unified_diff(before, after, path, path, lineterm="", n=CONTEXT_LINES))
    else:
        lines = _one_hunk(path, before, after)
    text = "\n".join(lines)
    return (
        text if len(text) <= MAX_DIFF_CHARS else text[:MAX_DIFF_CHARS] + "\n[… the diff continues]"
    )


def _one_hunk(path: str, before: list[str], after: list[str]) -> list[str]:
    """One hunk from the first change to the last: linear time, where difflib could take minutes."""
    start = _equal_prefix_length(before, after)
    end = _equal_prefix_length(
        before[: start - len(before) - 1 : -1], after[: start - len(after) - 1 : -1]
    )
    top = max(0, start - CONTEXT_LINES)
    removed, added = before[start : len(before) - end], after[start : len(after) - end]
    tail = before[len(before) - end :][:CONTEXT_LINES]
    around = start - top + len(tail)
    return [
        f"--- {path}",
        f"+++ {path}",
        f"@@ -{top + 1},{len(removed) + around} +{top + 1},{len(added) + around} @@",
        *(f" {line}" for line in before[top:start]),
        *(f"-{line}" for line in removed),
        *(f"+{line}" for line in added),
        *(f" {line}" for line in tail),
    ]


def _equal_prefix_length(first: list[str], second: list[str]) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


MAX_LINE_DIFF_BYTES = 256 << 10
"""Of the longer version; up to it both versions are decoded and compared line by line."""
CHUNK_BYTES = 64 << 10


def is_utf8(data: bytes) -> bool:
    """Whether bytes are valid UTF-8; decoded chunk by chunk."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), CHUNK_BYTES):
            decoder.decode(view[start : start + CHUNK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def diff_bytes(path: str, old: bytes, new: bytes) -> str:
    """The unified diff of two versions of a text file; a large file gives a single hunk."""
    if max(len(old), len(new)) <= MAX_LINE_DIFF_BYTES:
        return unified_diff(path, old.decode(), new.decode())
    start = _first_difference(old, new)
    top = old.rfind(b"\n", 0, start) + 1
    same = _equal_suffix_bytes(old, new, top)
    end = _line_end(old, len(old) - same, new, len(new) - same)
    tail = len(old) - end
    above = _lines_above(old, top)
    below = _lines_below(old, end)
    first = old.count(b"\n", 0, above) + 1
    around = _count_lines(old, above, top) + _count_lines(old, end, below)
    counts = [
        around + _count_lines(old, top, end),
        around + _count_lines(new, top, len(new) - tail),
    ]
    pieces = [
        f"--- {path}\n+++ {path}\n@@ -{first},{counts[0]} +{first},{counts[1]} @@",
        *_prefixed_lines(" ", old, above, top),
        *_prefixed_lines("-", old, top, end),
        *_prefixed_lines("+", new, top, len(new) - tail),
        *_prefixed_lines(" ", old, end, below),
    ]
    text = "\n".join(pieces)
    return (
        text if len(text) <= MAX_DIFF_CHARS else text[:MAX_DIFF_CHARS] + "\n[… the diff continues]"
    )


def _first_difference(old: bytes, new: bytes) -> int:
    shorter = min(len(old), len(new))
    at = 0
    while at < shorter and old[at : at + CHUNK_BYTES] == new[at : at + CHUNK_BYTES]:
        at += CHUNK_BYTES
    while at < shorter and old[at] == new[at]:
        at += 1
    return min(at, shorter)


def _equal_suffix_bytes(old: bytes, new: bytes, start: int) -> int:
    """How many bytes after `start` both versions have in common at their end."""
    limit = min(len(old), len(new)) - start
    same = 0
    while same + CHUNK_BYTES <= limit and _before_end(old, same) == _before_end(new, same):
        same += CHUNK_BYTES
    while same < limit and old[-1 - same] == new[-1 - same]:
        same += 1
    return same


def _before_end(data: bytes, same: int) -> bytes:
    return data[len(data) - same - CHUNK_BYTES : len(data) - same]


def _line_end(old: bytes, end: int, new: bytes, new_end: int) -> int:
    """The end, moved forward until a line starts there in both versions."""
    if _begins_line(old, end) and _begins_line(new, new_end):
        return end
    return old.find(b"\n", end) + 1 or len(old)


def _begins_line(data: bytes, at: int) -> bool:
    return at == 0 or data[at - 1] == ord("\n")


def _lines_above(data: bytes, at: int) -> int:
    for _ in range(CONTEXT_LINES):
        at = data.rfind(b"\n", 0, max(0, at - 1)) + 1
    return at


def _lines_below(data: bytes, at: int) -> int:
    for _ in range(CONTEXT_LINES):
        at = data.find(b"\n", at) + 1 or len(data)
    return at


def _count_lines(data: bytes, start: int, end: int) -> int:
    open_end = start < end and data[end - 1] != ord("\n")
    return data.count(b"\n", start, end) + open_end


def _prefixed_lines(mark: str, data: bytes, start: int, end: int) -> list[str]:
    """The lines with a diff prefix, no more of them than a diff shows."""
    text = data[start : min(end, start + 4 * MAX_DIFF_CHARS)].decode(errors="ignore")
    return [mark + line for line in text.removesuffix("\n").split("\n")] if text else []
