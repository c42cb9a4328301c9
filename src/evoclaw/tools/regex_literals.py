"""Finds a literal that every match of a regular expression contains: faster to search for."""

from __future__ import annotations

OPTIONAL_QUANTIFIERS = "*?{"
"""Quantifiers that make the character before them optional."""


def required_literal(pattern: str) -> str:
    """The longest literal that every match contains; empty if none is certain."""
    if set(pattern) & set("|("):
        return ""  # a group or an alternative may be missing in a match
    found = _LiteralScanner(pattern).literals()
    return max(found, key=len, default="")


class _LiteralScanner:
    """Scans a pattern for runs of literal characters."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._run, self._found = "", list[str]()

    def literals(self) -> list[str]:
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            self._at += 1
            if char == "\\":
                self._escaped()
            elif char in OPTIONAL_QUANTIFIERS:
                self._run = self._run[:-1]
                self._end(self._after_bracket("}") if char == "{" else self._at)
            elif char == "[":
                # A bracket at the start of a class is one of its members.
                first = self._at + (self._pattern[self._at : self._at + 1] == "^")
                self._end(self._after_bracket("]", first + 1))
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
        else:  # a class, an assertion, a number, or the start of a longer escape
            self._end(len(self._pattern) if char in "pPxQ" else self._at)

    def _after_bracket(self, bracket: str, start: int | None = None) -> int:
        """The index after the next unescaped bracket; beyond the pattern if there is none."""
        index = self._at if start is None else start
        while index < len(self._pattern) and self._pattern[index] != bracket:
            index += 2 if self._pattern[index] == "\\" else 1
        # A class within a class, such as [[:alpha:]]: the rest of the pattern is skipped.
        inner = self._pattern[self._at : index]
        return len(self._pattern) if bracket == "]" and "[" in inner else index + 1

    def _end(self, next_at: int) -> None:
        if self._run:
            self._found.append(self._run)
        self._run, self._at = "", next_at
