"""Removes terminal control sequences from text of models, tools and devices."""

from __future__ import annotations

import re
import unicodedata

# Sequences that move the cursor, set the title, write the clipboard or hide a link's target.
_SEQUENCES = re.compile(
    r"""
      \x1b \[ [0-?]* [ -/]* [@-~]            # CSI
    | \x1b [\]PX^_] .*? (?: \x07 | \x1b\\ | \Z) # OSC, DCS, SOS, PM, APC: to their end
    | \x1b .?                                # any other escape
    | \x9b [0-?]* [ -/]* [@-~]               # CSI in one byte
    """,
    re.VERBOSE | re.DOTALL,
)
_ALLOWED_CONTROLS = "\n\t"


def clean(text: str) -> str:
    """Remove escape sequences, control characters, and characters that reorder or hide text."""
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    return "".join(
        c for c in text if c in _ALLOWED_CONTROLS or unicodedata.category(c) not in _HIDDEN
    )


_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Control, format (bidi, zero-width, tags), surrogate, private use, line separators."""


def one_line(text: str, limit: int = 100) -> str:
    """The text on one line, cleaned and cut."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
