"""What stands between the nodes of a tree: there must be nothing that the grammar passed over."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import TypeAlias

from evoclaw.shell.grammar import Node
from evoclaw.shell.shapes import Unreadable

_GAP = re.compile(rb"(?:[ \t\n]|(?<=[ \t])\\\n)*")
_TIGHT = re.compile(rb"(?:[ \t]|(?<=[ \t])\\\n)+")
Laid: TypeAlias = tuple[Node, str, int, int]
"""A node, its type, and where it begins and ends."""


def check_gaps(data: bytes, children: Sequence[Node]) -> None:
    """Between statements there may be blanks and lines."""
    end = -1
    for child in children:
        start = child.start_byte
        if -1 < end < start and data[end:start] != b" " and not _GAP.fullmatch(data, end, start):
            raise Unreadable("its shell syntax is not understood")
        end = child.end_byte


def check_tight(data: bytes, children: Sequence[Node]) -> None:
    """Between words there must be blanks and no more."""
    end = -1
    for child in children:
        start = child.start_byte
        if end > -1 and data[end:start] != b" " and not _TIGHT.fullmatch(data, end, start):
            raise Unreadable("its shell syntax is not understood")
        end = child.end_byte


def laid_out(node: Node) -> list[Laid]:
    """The children of a node; each of its properties is fetched once, for that is dear."""
    return [(one, one.type, one.start_byte, one.end_byte) for one in node.children]


def check_redirects(data: bytes, children: Sequence[Laid], kinds: Set[str]) -> None:
    """Like between words, but that a redirection may follow a word closely."""
    before = -1
    for child, kind, start, end in children:
        if before > -1 and data[before:start] != b" " and not _TIGHT.fullmatch(data, before, start):
            closely = before == start and data[start : start + 1] in (b"<", b">", b"&")
            if not closely or kind not in kinds:
                raise Unreadable("its shell syntax is not understood")
        before = end
        if kind == "heredoc_redirect" and child is not children[-1][0]:
            raise Unreadable("a heredoc is not understood")
