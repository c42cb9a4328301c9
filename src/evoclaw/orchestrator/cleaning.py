"""Text from a device, made fit to be shown: to a model as data, to a person as one plain line."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 200
"""Characters of a line that a device says of itself."""
_SPACES = re.compile(r"\s+")


def one_line(text: str, limit: int = LONGEST) -> str:
    """The text without control characters, on one line, cut."""
    shown = "".join(
        char if char.isspace() or not unicodedata.category(char).startswith("C") else " "
        for char in text[: 4 * limit]
    )
    line = _SPACES.sub(" ", shown).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quoted(text: str) -> str:
    """One line as a quotation that its own words cannot end."""
    return '"' + one_line(text).replace('"', "'") + '"'
