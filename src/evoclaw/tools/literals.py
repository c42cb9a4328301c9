"""What every match of a regular expression has in it: a text is quicker to look for."""

from __future__ import annotations

OPTIONAL = "*?{"
"""After these the character before may be missing."""


def required_text(pattern: str) -> str:
    """The longest text that every match must hold; empty if none is sure. Never guesses."""
    if set(pattern) & set("|("):
        return ""  # what is in a group or a choice may be missing
    found = _Runs(pattern).all()
    return max(found, key=len, default="")


class _Runs:
    """Goes through a pattern and gathers what stands there literally."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._run, self._found = "", list[str]()

    def all(self) -> list[str]:
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            self._at += 1
            if char == "\\":
                self._escaped()
            elif char in OPTIONAL:
                self._run = self._run[:-1]
                self._end(self._closing("}") if char == "{" else self._at)
            elif char == "[":
                # A bracket right at the beginning of a class is one of its members.
                first = self._at + (self._pattern[self._at : self._at + 1] == "^")
                self._end(self._closing("]", first + 1))
            elif char in ".^$+\n\r":
                self._end(self._at)
            else:
                self._run += char
        self._end(self._at)
        return self._found

    def _escaped(self) -> None:
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        if char.isascii() and char.isprintable() and not char.isalnum() and char:
            self._run += char
        else:  # a class, a place, a number, or the beginning of something longer
            self._end(len(self._pattern) if char in "pPxQ" else self._at)

    def _closing(self, bracket: str, start: int | None = None) -> int:
        """The place behind the next such bracket that is not escaped; the end if there is none."""
        place = self._at if start is None else start
        while place < len(self._pattern) and self._pattern[place] != bracket:
            place += 2 if self._pattern[place] == "\\" else 1
        # A class within a class, such as [[:alpha:]]: what follows is not sure.
        inner = self._pattern[self._at : place]
        return len(self._pattern) if bracket == "]" and "[" in inner else place + 1

    def _end(self, go_on_at: int) -> None:
        if self._run:
            self._found.append(self._run)
        self._run, self._at = "", go_on_at
