"""Text from a device, made fit to be shown: to a model as data, to a person as one plain line."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 200
"""Characters of a line that a device says of itself."""
LONGEST_TEXT = 4_000
"""Characters of what it says of a tool."""
_SPACES = re.compile(r"\s+")
_ODD = re.compile(r"[^ -~]")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def one_line(text: str, limit: int = LONGEST) -> str:
    """The text without control characters, on one line, cut."""
    line = _SPACES.sub(" ", _printable(text[: 4 * limit])).strip()
    return _cut(line, limit)


def plain(text: str, limit: int = LONGEST_TEXT) -> str:
    """The text without control characters but for the ends of its lines, cut; decent text as is."""
    return _cut("\n".join(map(_printable, text[: 4 * limit].split("\n"))), limit)


def quoted(text: str) -> str:
    """One line as a quotation that its own words cannot end."""
    return '"' + one_line(text).replace('"', "'") + '"'


def _printable(text: str) -> str:
    """Blanks instead of what controls a terminal, hides, or turns the direction of writing."""
    return _ODD.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return " " if unicodedata.category(found[0]) in _UNSEEN else found[0]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
