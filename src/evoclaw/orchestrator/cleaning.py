"""Sanitizes text from a device before it is shown to a model or printed for a person."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 200
"""Longest line that a device may say about itself."""
LONGEST_TEXT = 4_000
"""Longest text that a device may say about a tool."""
_SPACES = re.compile(r"\s+")
_ODD = re.compile(r"[^ -~]")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def one_line(text: str, limit: int = LONGEST) -> str:
    """Return the text on one line, without control characters, cut to the limit."""
    line = _SPACES.sub(" ", _printable(text[: 4 * limit])).strip()
    return _cut(line, limit)


def plain(text: str, limit: int = LONGEST_TEXT) -> str:
    """Return the text without control characters except line ends, cut to the limit."""
    return _cut("\n".join(map(_printable, text[: 4 * limit].split("\n"))), limit)


def quoted(text: str) -> str:
    """Return one quoted line; quotes inside the text cannot end the quotation."""
    return '"' + one_line(text).replace('"', "'") + '"'


def _printable(text: str) -> str:
    """Replace terminal controls, invisible characters and direction overrides by blanks."""
    return _ODD.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return " " if unicodedata.category(found[0]) in _UNSEEN else found[0]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
