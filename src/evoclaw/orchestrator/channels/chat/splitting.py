"""Splits long answers into messages, without breaking code blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_FENCE_UNITS = 40
"""Of the line that opens a code block again; a longer one is repeated without its language."""
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def text_units(text: str) -> int:
    """The length of a text in UTF-16 units, as chat services count it."""
    return len(text) + sum(character > "\uffff" for character in text)


def split_text(text: str, limit: int) -> Sequence[str]:
    """Parts of at most `limit` UTF-16 units, split at line ends, else at blanks.

    A code block that is split is closed at the end of a part, and opened again in the next one.
    """
    if text_units(text) <= limit:
        return [text]
    parts: list[str] = []
    lines: list[str] = []
    size, fence, opening = 0, "", ""
    for line in _short_lines(text, limit - 2 * MAX_FENCE_UNITS):
        # Room for the line, its line end, and the line that closes the block.
        if lines and size + text_units(line) + 1 + MAX_FENCE_UNITS > limit:
            parts.append("\n".join([*lines, *([fence] if fence else [])]))
            lines = [opening] if fence else []
            size = text_units(opening) + 1 if fence else 0
        lines.append(line)
        size += text_units(line) + 1
        if (found := _FENCE.match(line)) is not None:
            mark, info = found[1], found[2].strip()
            if not fence:
                fence = mark[:MAX_FENCE_UNITS]
                opening = line if text_units(line) < MAX_FENCE_UNITS else fence
            elif mark[0] == fence[0] and len(mark) >= len(fence) and not info:
                fence = opening = ""
    parts.append("\n".join(lines))
    return [part for part in parts if part.strip()]


def _short_lines(text: str, limit: int) -> Sequence[str]:
    found: list[str] = []
    for line in text.split("\n"):
        rest = line
        while text_units(rest) > limit:
            head = _head(rest, limit)
            at = head.rfind(" ")
            cut = at if at > len(head) // 2 else len(head)
            found.append(rest[:cut])
            rest = rest[cut:].removeprefix(" ")
        found.append(rest)
    return found


def _head(text: str, limit: int) -> str:
    """The longest start of a text within the limit."""
    head = text[:limit]
    while text_units(head) > limit:
        head = head[: -max(1, (text_units(head) - limit) // 2)]
    return head
