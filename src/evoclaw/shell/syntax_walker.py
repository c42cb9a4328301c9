"""`SyntaxWalker`: walks a shell syntax tree for effects; refuses every node it does not know."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.conditions import look_into_test
from evoclaw.shell.effects import Unreadable, Word, names
from evoclaw.shell.grammar import (
    MAX_SYNTAX_DEPTH,
    LaidOutNode,
    Node,
    check_gaps,
    check_redirects,
    check_tight,
    laid_out,
    parse,
)
from evoclaw.shell.programs import run_program
from evoclaw.shell.redirects import Redirects
from evoclaw.shell.words import PLAIN_NODE_TYPES, PLAIN_WORD, calculate, word, words

_BEFORE_COMMENT = frozenset(b" \t\n;&|()")
_TOKENS = names(
    "; & && || | |& ( ) { } ;; if then elif else fi while until do done in case esac !"
) | {"\n"}
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_BASH_ONLY = frozenset({"c_style_for_statement", "array", "herestring_redirect"})


class SyntaxWalker:
    """Analyses a command."""

    def __init__(self, scene: AnalysisState) -> None:
        self._scene = scene
        self._data = b""
        self._level = 0
        scene.reparse = self.nested

    def text(self, text: str, *, posix: bool) -> None:
        """Read a complete text."""
        root, self._data = parse(text)
        self._scene.data = self._data
        data, begins, ends = self._data, root.start_byte, root.end_byte
        if data[:begins].strip() or data[ends:].strip():
            raise Unreadable("its shell syntax is not understood")
        self._scene.posix = self._scene.posix or posix
        self._all(root)

    def nested(self, text: str, posix: bool) -> None:
        """Read shell code from a word."""
        scene, data = self._scene, self._data
        was, straight = scene.posix, scene.straight
        scene.depth += 1
        if scene.depth > 8:
            raise Unreadable("shells are nested too deeply")
        scene.straight = False
        self.text(text, posix=posix)
        scene.depth -= 1
        scene.posix, scene.straight, self._data, scene.data = was, straight, data, data

    def statement(self, node: Node) -> None:
        """Read a statement."""
        self._statement(node, node.type)

    def _statement(self, node: Node, kind: str) -> None:
        if not node.is_named:
            if kind not in _TOKENS or (self._scene.posix and kind == "|&"):
                raise Unreadable(f"{kind!r} is not understood here")
            return
        read = self._KINDS.get(kind)
        if read is None or (self._scene.posix and kind in _BASH_ONLY):
            raise Unreadable(f"{kind.replace('_', ' ')} is not analysed")
        self._level += 1
        if self._level > MAX_SYNTAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        read(self, node)
        self._level -= 1

    def _all(self, node: Node) -> None:
        children, scene = node.children, self._scene
        check_gaps(self._data, children)
        straight, kinds = scene.straight, [child.type for child in children]
        # A background part runs concurrently with what follows.
        for child, kind, following in zip(children, kinds, (*kinds[1:], ""), strict=False):
            scene.straight = straight and following != "&"
            self._statement(child, kind)
        scene.straight = straight

    def _branches(self, node: Node) -> None:
        straight, self._scene.straight = self._scene.straight, False
        self._all(node)
        self._scene.straight = straight

    def _loop(self, node: Node) -> None:
        self._scene.repeated += 1
        self._branches(node)
        self._scene.repeated -= 1

    def _compound(self, node: Node) -> None:
        text = self._text(node)
        if not text.startswith("(("):
            return self._branches(node)
        if self._scene.posix or not text.endswith("))"):
            raise Unreadable("((…)) means different things to different shells")
        return calculate(text[2:-2], self._scene)

    def _for(self, node: Node) -> None:
        children = node.children
        self._check_gaps(children)
        name = self._text(children[1])
        values: list[Word] = []
        for child in children[2:-1]:
            if child.is_named and child.type != "comment":
                values += self._words(child)
            elif not child.is_named and child.type not in ("in", ";"):
                raise Unreadable("a loop is not understood")
        if children[0].type == "select" or children[-1].type != "do_group":
            raise Unreadable("a loop is not understood")
        with self._scene.bound(name, values):
            self._loop_body(children[-1])

    def _loop_body(self, node: Node) -> None:
        self._scene.repeated += 1
        self.statement(node)
        self._scene.repeated -= 1

    def _counting_for(self, node: Node) -> None:
        text = self._text(node)
        head, _, rest = text.partition("))")
        parts = head.partition("((")[2].split(";")
        body = node.children[-1]
        if (
            len(parts) != 3
            or body.type != "do_group"
            or rest[:2].strip(" \t\n;")[:1] not in ("d", "")
        ):
            raise Unreadable("a loop is not understood")
        for part in parts:
            calculate(part, self._scene)
        self._loop_body(body)

    def _case(self, node: Node) -> None:
        self._check_gaps(node.children)
        for child in node.children:
            if child.type == "case_item":
                self._case_item(child)
            elif child.is_named and child.type != "comment":
                self._word(child)
            elif not child.is_named and child.type not in ("case", "in", "esac"):
                raise Unreadable("a case is not understood")

    def _case_item(self, node: Node) -> None:
        children = node.children
        self._check_gaps(children)
        ends = next((i for i, child in enumerate(children) if child.type == ")"), None)
        if ends is None:
            raise Unreadable("a case is not understood")
        for child in children[:ends]:
            if child.type in ("extglob_pattern", "regex"):
                if re.search(r"[$`\"'\\()\s]", self._text(child)):
                    raise Unreadable("a pattern of a case is not understood")
            elif child.is_named:
                self._word(child)
            elif child.type not in ("(", "|"):
                raise Unreadable("a case is not understood")
        straight, self._scene.straight = self._scene.straight, False
        for child in children[ends + 1 :]:
            if child.type not in (";;", ";&", ";;&"):
                self.statement(child)
        self._scene.straight = straight

    def _function(self, node: Node) -> None:
        children = node.children
        self._check_gaps(children)
        plain = ("(", ")") if self._scene.posix else ("(", ")", "function")
        for child in children[:-1]:
            named = child.type == "word" and re.fullmatch(r"[\w.:-]+", self._text(child), re.ASCII)
            if not named and child.type not in plain:
                raise Unreadable("a function is not understood")
        if children[-1].type not in ("compound_statement", "subshell"):
            raise Unreadable("a function is not understood")
        self._loop_body(children[-1])

    def _test(self, node: Node) -> None:
        look_into_test(node, self._scene, self._word, self._check_tight)

    def _comment(self, node: Node) -> None:
        start = node.start_byte
        if start and self._data[start - 1] not in _BEFORE_COMMENT:
            raise Unreadable("a comment starts inside a word")

    def _assignments(self, node: Node) -> None:
        self._check_tight(node.children)
        for child in node.children:
            if child.type != "variable_assignment":
                raise Unreadable("an assignment is not understood")
            self._constant(child)

    def _constant(self, node: Node) -> None:
        self._assignment(node, constant=True)

    def _assignment(self, node: Node, *, constant: bool = False) -> None:
        children = node.children
        name = self._text(children[0])
        operator = children[1].type if len(children) > 1 else ""
        if operator not in ("=", "+=") or len(children) > 3:
            raise Unreadable("an assignment is not understood")
        if children[0].type == "subscript":
            if not re.fullmatch(r"[A-Za-z_]\w*\[[0-9]+\]", name, re.ASCII):
                raise Unreadable("an array's index is calculated")
            name, constant = name.partition("[")[0], False
        value: Word | None = Word("", "")
        if len(children) == 3:
            value = self._value(children[2])
            if children[2].start_byte != children[1].end_byte:
                raise Unreadable("an assignment has a gap")
        self._scene.assign(name, value if operator == "=" else None, constant=constant)

    def _value(self, node: Node) -> Word | None:
        if node.type != "array":
            return self._word(node)
        if self._scene.posix:
            raise Unreadable("an array means different things to different shells")
        self._check_gaps(node.children)
        for child in node.children[1:-1]:
            if self._text(child).startswith("[") or not child.is_named:
                raise Unreadable("an array's index is calculated")
            if child.type != "comment":
                self._word(child)
        return None

    def _declaration(self, node: Node) -> None:
        children = node.children
        self._check_tight(children)
        for child in children[1:]:
            if child.type == "variable_assignment":
                assignment = self._text(child)
                if re.search(r"=['\"$\\]*\(['\"]|=['\"\\$]+.*\(", assignment) or (
                    self._scene.posix and re.search(r"[$`]", assignment)
                ):
                    raise Unreadable("a declaration is not understood")
                self._assignment(child)
                continue
            text = self._word(child).text
            if text is None or "[" in text or "=(" in text or re.match(r"[-+]\w*[niIaA]", text):
                raise Unreadable("a declaration is not understood")
            if not text.startswith(("-", "+")):
                name, equals, _value = text.partition("=")
                self._scene.assign(name.removesuffix("+"), None) if equals else None

    def _unset(self, node: Node) -> None:
        self._check_tight(node.children)
        for child in node.children[1:]:
            text = self._word(child).text
            if text is None or "[" in text:
                raise Unreadable("what is unset is known only at run time")
            if not text.startswith("-"):
                self._scene.assign(text, None)

    def _lone_redirect(self, node: Node) -> None:
        self._redirect_all(None, [node])

    def _command(self, node: Node) -> None:
        children = laid_out(node)
        if _REDIRECTS.isdisjoint([kind for _, kind, _, _ in children]):
            run_program(self._pieces(children, None), self._scene, None)
        else:
            self._redirect_all(node, [])

    def _redirected(self, node: Node) -> None:
        children = laid_out(node)
        redirects = [child for child, kind, _, _ in children if kind in _REDIRECTS]
        bodies = [child for child, kind, _, _ in children if kind not in _REDIRECTS]
        check_redirects(self._data, children, _REDIRECTS)
        if len(bodies) > 1:
            raise Unreadable("a redirection is not understood")
        self._redirect_all(bodies[0] if bodies else None, redirects)

    def _redirect_all(self, body: Node | None, nodes: Sequence[Node]) -> None:
        redirects = Redirects(self._scene, self._word, self._words, self._substitute)
        for node in nodes:
            redirects.read(node, self._check_tight)
        by = ""
        if body is not None and body.type == "command":
            found = self._pieces(laid_out(body), redirects)
            by = run_program([*found, *redirects.extra], self._scene, redirects.stdin)
        elif redirects.extra:
            raise Unreadable("words after a redirection are not understood")
        elif body is not None:
            count = len(self._scene.programs)
            self.statement(body)
            if body.type in ("pipeline", "list") and len(self._scene.programs) > count:
                by = self._scene.programs[-1].name
        redirects.settle(by)
        for node in redirects.statements:
            self._branches_of(node)

    def _branches_of(self, node: Node) -> None:
        straight, self._scene.straight = self._scene.straight, False
        self.statement(node)
        self._scene.straight = straight

    def _pieces(self, children: Sequence[LaidOutNode], redirects: Redirects | None) -> list[Word]:
        """The words of a simple command; its assignments and redirections are read too."""
        data = self._data
        check_redirects(data, children, _REDIRECTS)
        found: list[Word] = []
        for child, kind, start, end in children:
            if kind in PLAIN_NODE_TYPES and PLAIN_WORD.fullmatch(data, start, end):
                plain = data[start:end].decode()
                found.append(Word(plain, plain))
            elif kind == "command_name":
                found += self._words(child.children[0])
            elif kind == "variable_assignment":
                self._assignment(child)
            elif redirects is None or kind not in _REDIRECTS:
                found += self._words(child)
            else:
                redirects.read(child, self._check_tight)
                if redirects.extra and child is not children[-1][0]:
                    raise Unreadable("words after a redirection are not understood")
        return found

    def _words(self, node: Node) -> list[Word]:
        return words(node, self._scene, self._substitute)

    def _word(self, node: Node) -> Word:
        return word(node, self._scene, self._substitute)

    def _substitute(self, node: Node) -> None:
        text = self._text(node).lstrip()
        if text.startswith("`") and "\\" in text:
            raise Unreadable("`…` with a backslash in it; write $(…)")
        children = node.children
        if not text.startswith(("$(", "`", "<(", ">(")) or not text.endswith((")", "`")):
            raise Unreadable("a substitution is not understood")
        self._check_gaps(children)
        straight, self._scene.straight = self._scene.straight, False
        for child in children[1:-1]:
            self.statement(child)
        self._scene.straight = straight

    def _check_gaps(self, children: Sequence[Node]) -> None:
        check_gaps(self._data, children)

    def _check_tight(self, children: Sequence[Node]) -> None:
        check_tight(self._data, children)

    def _text(self, node: Node) -> str:
        return (node.text or b"").decode()

    _KINDS: ClassVar[dict[str, Callable[[SyntaxWalker, Node], None]]] = {
        "command": _command,
        "redirected_statement": _redirected,
        "program": _all,
        "list": _branches,
        "pipeline": _branches,
        "subshell": _branches,
        "compound_statement": _compound,
        "if_statement": _branches,
        "elif_clause": _branches,
        "else_clause": _branches,
        "while_statement": _loop,
        "do_group": _branches,
        "for_statement": _for,
        "c_style_for_statement": _counting_for,
        "case_statement": _case,
        "function_definition": _function,
        "negated_command": _branches,
        "test_command": _test,
        "declaration_command": _declaration,
        "unset_command": _unset,
        "variable_assignment": _constant,
        "variable_assignments": _assignments,
        "comment": _comment,
        **dict.fromkeys(_REDIRECTS, _lone_redirect),
    }
