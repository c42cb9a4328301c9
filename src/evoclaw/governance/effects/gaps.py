"""What stands between the nodes of a tree: there must be nothing that the grammar passed over."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evoclaw.governance.effects.grammar import Node
from evoclaw.governance.effects.shapes import Unreadable

_GAP = re.compile(rb"(?:[ \t\n]|(?<=[ \t])\\\n)*")
_TIGHT = re.compile(rb"(?:[ \t]|(?<=[ \t])\\\n)+")


def check_gaps(data: bytes, children: Sequence[Node]) -> None:
    """Between statements there may be blanks and lines."""
    end = -1
    for child in children:
        start = child.start_byte
        if -1 < end < start and not _GAP.fullmatch(data, end, start):
            raise Unreadable("its shell syntax is not understood")
        end = child.end_byte


def check_tight(data: bytes, children: Sequence[Node]) -> None:
    """Between words there must be blanks and no more."""
    end = -1
    for child in children:
        start = child.start_byte
        if end > -1 and not _TIGHT.fullmatch(data, end, start):
            raise Unreadable("its shell syntax is not understood")
        end = child.end_byte


def check_redirects(data: bytes, children: Sequence[Node], kinds: Sequence[str]) -> None:
    """Like between words, but that a redirection may follow a word closely."""
    end = -1
    for child in children:
        start, kind = child.start_byte, child.type
        if end > -1 and not _TIGHT.fullmatch(data, end, start):
            closely = end == start and data[start : start + 1] in (b"<", b">", b"&")
            if not closely or kind not in kinds:
                raise Unreadable("its shell syntax is not understood")
        end = child.end_byte
        if kind == "heredoc_redirect" and child is not children[-1]:
            raise Unreadable("a heredoc is not understood")
