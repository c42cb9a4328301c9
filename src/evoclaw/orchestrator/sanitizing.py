"""Sanitizes text from a device before it is shown to a model or printed for a person."""

from __future__ import annotations

import re
import unicodedata

MAX_LINE_CHARS = 200
"""Longest line that a device may say about itself."""
MAX_TEXT_CHARS = 4_000
"""Longest text that a device may say about a tool."""
_SPACES = re.compile(r"\s+")
_NOT_PRINTABLE_ASCII = re.compile(r"[^ -~]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def one_line(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """Return the text on one line, without control characters, cut to the limit."""
    line = _SPACES.sub(" ", _printable(text[: 4 * limit])).strip()
    return _truncated(line, limit)


def plain_text(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Return the text without control characters except line ends, cut to the limit."""
    return _truncated("\n".join(map(_printable, text[: 4 * limit].split("\n"))), limit)


def quoted(text: str) -> str:
    """Return one quoted line; quotes inside the text cannot end the quotation."""
    return '"' + one_line(text).replace('"', "'") + '"'


def _printable(text: str) -> str:
    """Replace terminal controls, invisible characters and direction overrides by blanks."""
    return _NOT_PRINTABLE_ASCII.sub(_visible_or_blank, text)


def _visible_or_blank(found: re.Match[str]) -> str:
    return " " if unicodedata.category(found[0]) in _INVISIBLE_CATEGORIES else found[0]


def _truncated(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
