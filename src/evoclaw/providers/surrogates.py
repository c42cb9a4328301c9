"""Join surrogate pairs that a server cut between two payloads."""

from __future__ import annotations

import re

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rb'(?P<pair>%b%b)|(?P<first>%b)(?=")|(?P<last>(?<=")%b)|(?P<lone>%b|%b)|\\.'
    % (_HIGH, _LOW, _HIGH, _LOW, _HIGH, _LOW)
)
"""Any escape of a JSON text; so the second character of an escaped backslash starts none."""
_REPLACEMENT = rb"\ufffd"


class SurrogateJoiner:
    """Moves the first half of a pair to the text that starts with its second half.

    A server that sends each half of an emoji in a chunk of its own writes JSON that no strict
    parser reads. A half that stays alone becomes U+FFFD.
    """

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first = b""

    def __call__(self, payload: bytes) -> bytes:
        """The payload with complete pairs only."""
        if b"\\ud" not in payload and b"\\uD" not in payload:
            return payload
        return _ESCAPE.sub(self._joined, payload)

    def _joined(self, found: re.Match[bytes]) -> bytes:
        escape, first = found.group(), self._first
        match found.lastgroup:
            case "first":
                self._first = escape
                return b""
            case "last" if first:
                self._first = b""
                return first + escape
            case "last" | "lone":
                return _REPLACEMENT
            case _:
                return escape
