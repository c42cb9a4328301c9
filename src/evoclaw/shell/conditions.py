"""`[ … ]` and `[[ … ]]`: what looks like a comparison may be a redirection, or run commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import Unreadable, Word
from evoclaw.shell.grammar import Node

_SINGLE = frozenset({"[", "]", "=", "==", "!=", "!", "-a", "-o"})
_DOUBLE = _SINGLE | {"[[", "]]", "<", ">", "&&", "||", "(", ")", "=~"}
_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_GROUPS = frozenset({"binary_expression", "unary_expression", "parenthesized_expression"})
_VARIABLE = re.compile(r'"?\$\{?([A-Za-z_]\w*)\}?"?', re.ASCII)


def look_into_test(
    node: Node,
    scene: AnalysisState,
    word: Callable[[Node], Word],
    check_gaps: Callable[[Sequence[Node]], None],
) -> None:
    """Read a test command."""
    double = node.children[0].type == "[["
    if node.children[0].type not in ("[", "[[") or (double and scene.posix):
        raise Unreadable("a test means different things to different shells")
    _Test(scene, word, check_gaps, double).read(node)


class _Test:
    def __init__(
        self,
        scene: AnalysisState,
        word: Callable[[Node], Word],
        check_gaps: Callable[[Sequence[Node]], None],
        double: bool,
    ) -> None:
        self._scene, self._word, self._check_gaps = scene, word, check_gaps
        self._double = double

    def read(self, node: Node) -> None:
        children = node.children
        self._check_gaps(children)
        operators = {(child.text or b"").decode() for child in children if not _is_word(child)}
        for child in children:
            if child.type in _GROUPS:
                self.read(child)
            elif child.type in ("regex", "extglob_pattern"):
                self._regex(child)
            elif _is_word(child):
                self._operand(child, operators)
            elif child.type == "test_operator":
                continue
            elif child.type not in (_DOUBLE if self._double else _SINGLE):
                raise Unreadable(f"{child.type!r} in a test is not understood")

    def _operand(self, node: Node, operators: set[str]) -> None:
        found = self._word(node)
        if operators & {"-v", "-R"} and not re.fullmatch(r"[A-Za-z_]\w*", found.text or "", re.A):
            raise Unreadable("a test of a variable is known only at run time")
        if not self._double and found.text is None and found.many:
            raise Unreadable("a test is known only at run time")
        if self._double and operators & _NUMBERS:
            text = found.text
            if text is not None and text.isdecimal():
                return
            name = _VARIABLE.fullmatch((node.text or b"").decode())
            if name is None:
                raise Unreadable("a test calculates with more than numbers")
            self._scene.evaluate(name[1])

    def _regex(self, node: Node) -> None:
        if re.search(r"\$[^)|\s]|[`\"'\\]", (node.text or b"").decode()):
            raise Unreadable("a pattern of a test is not understood")


def _is_word(node: Node) -> bool:
    return node.is_named and node.type not in ("test_operator", *_GROUPS)
