"""Parses shell text with tree-sitter's grammar for bash; the only file that uses tree-sitter."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import cache
from typing import TYPE_CHECKING, TypeAlias
from unicodedata import category

from evoclaw.shell.effects import Unreadable

if TYPE_CHECKING:
    from tree_sitter import Node as _Node
    from tree_sitter import Parser

    Node: TypeAlias = _Node
else:
    Node = object


MAX_COMMAND_CHARS = 16_384
"""Length of a command that is analysed."""
MAX_SYNTAX_DEPTH = 40
"""Nested nodes, which limits the recursion of the walkers."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_JOINED = re.compile(r"\\\n")


@cache
def _parser() -> Parser:
    # Imported lazily: 4 MB and 20 ms, for processes that may never judge a command.
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> tuple[Node, bytes]:
    """The syntax tree of a command and its bytes; raise `Unreadable`."""
    if len(text) > MAX_COMMAND_CHARS:
        raise Unreadable(f"the command has more than {MAX_COMMAND_CHARS} characters")
    if found := _CONTROL.search(text):
        raise Unreadable(f"it contains the control character {ord(found[0]):#04x}")
    if not text.isascii():
        _check_letters(text)
    if "\\\n" in text:
        _check_joints(text)
    data = text.encode()
    root = _parser().parse(data).root_node
    if root.has_error:
        raise Unreadable("its shell syntax is not understood")
    return root, data


def _check_letters(text: str) -> None:
    """Refuse characters that a shell, a grammar and a person may read differently."""
    for sign in text:
        if not sign.isascii() and category(sign)[0] in "CZ":
            raise Unreadable(f"it contains the invisible character U+{ord(sign):04X}")


def _check_joints(text: str) -> None:
    r"""Refuse `\` at a line's end inside a word: bash joins the halves, the grammar splits them."""
    for found in _JOINED.finditer(text):
        before = text[max(0, found.start() - 2) : found.start()]
        if before[-1:] not in (" ", "\t") or before[:1] == "\\":
            raise Unreadable("a word continues in the next line; write it in one line")


_GAP = re.compile(rb"(?:[ \t\n]|(?<=[ \t])\\\n)*")
_TIGHT = re.compile(rb"(?:[ \t]|(?<=[ \t])\\\n)+")
LaidOutNode: TypeAlias = tuple[Node, str, int, int]
"""A node, its type, its start and its end."""


def check_gaps(data: bytes, children: Sequence[Node]) -> None:
    """Check that only blanks and newlines are between statements."""
    end = -1
    for child in children:
        start = child.start_byte
        if -1 < end < start and data[end:start] != b" " and not _GAP.fullmatch(data, end, start):
            raise Unreadable("its shell syntax is not understood")
        end = child.end_byte


def check_tight(data: bytes, children: Sequence[Node]) -> None:
    """Check that only blanks are between words."""
    end = -1
    for child in children:
        start = child.start_byte
        if end > -1 and data[end:start] != b" " and not _TIGHT.fullmatch(data, end, start):
            raise Unreadable("its shell syntax is not understood")
        end = child.end_byte


def laid_out(node: Node) -> list[LaidOutNode]:
    """The children of a node; each property is fetched once, as that is slow."""
    return [(child, child.type, child.start_byte, child.end_byte) for child in node.children]


def check_redirects(data: bytes, children: Sequence[LaidOutNode], kinds: Set[str]) -> None:
    """Check gaps between words, but a redirection may directly follow a word."""
    before = -1
    for child, kind, start, end in children:
        if before > -1 and data[before:start] != b" " and not _TIGHT.fullmatch(data, before, start):
            closely = before == start and data[start : start + 1] in (b"<", b">", b"&")
            if not closely or kind not in kinds:
                raise Unreadable("its shell syntax is not understood")
        before = end
        if kind == "heredoc_redirect" and child is not children[-1][0]:
            raise Unreadable("a heredoc is not understood")
