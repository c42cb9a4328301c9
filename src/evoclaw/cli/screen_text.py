"""Text on the screen of a chat: cut or wrapped to its width, and printed above the input."""

from __future__ import annotations

import io
from collections.abc import Callable
from textwrap import wrap

from prompt_toolkit.utils import get_cwidth


def cut_to_width(text: str, columns: int) -> str:
    """The text, cut to a number of columns of the terminal."""
    if get_cwidth(text) <= columns:
        return text
    width, kept = 1, list[str]()
    for character in text:
        width += get_cwidth(character)
        if width > columns:
            break
        kept.append(character)
    return "".join(kept) + "…"


def wrap_lines(text: str, columns: int) -> str:
    """The text with the lines that are too long broken between words."""
    return "\n".join(
        line if get_cwidth(line) <= columns else _wrapped(line, columns)
        for line in text.split("\n")
    )


def _wrapped(line: str, columns: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return "\n".join(wrap(line, columns, subsequent_indent=indent, replace_whitespace=False))


class PrintedAbove(io.TextIOBase):
    """A stream whose text is printed above the input."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def write(self, text: str, /) -> int:
        """Print a text."""
        self._write(text)
        return len(text)

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """True: what is printed above the input is on the terminal."""
        return True
