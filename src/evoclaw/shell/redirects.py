"""Redirections: the files opened for a command, and the text on its stdin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import ANY_WORD, PathAccess, Unreadable, Word, unescape
from evoclaw.shell.grammar import Node, laid_out
from evoclaw.shell.words import Substitute, WordReader

_OPENS = {
    "<": (PathAccess.READ,),
    ">": (PathAccess.WRITE,),
    ">>": (PathAccess.WRITE,),
    ">|": (PathAccess.WRITE,),
    "&>": (PathAccess.WRITE,),
    "&>>": (PathAccess.WRITE,),
    ">&": (PathAccess.WRITE,),
    "<&": (PathAccess.READ,),
}
_CLOSES = ("<&-", ">&-")
_OPERATORS = ("&&", "||", "|", "|&", ";")
_WORDS = frozenset(
    {"word", "number", "concatenation", "raw_string", "ansi_c_string", "string"}
    | {"simple_expansion", "expansion", "command_substitution", "process_substitution"}
    | {"arithmetic_expansion", "brace_expression"}
)
CheckGaps = Callable[[Sequence[Node]], None]


class Redirects:
    """The redirections of one command."""

    def __init__(
        self,
        scene: AnalysisState,
        word: Callable[[Node], Word],
        words: Callable[[Node], list[Word]],
        substitute: Substitute,
    ) -> None:
        self._scene, self._word, self._words = scene, word, words
        self._substitute = substitute
        self._opened: list[tuple[Word, PathAccess]] = []
        self.stdin: str | None = None
        """The text on stdin, if it is known."""
        self.extra: list[Word] = []
        """Words that the grammar assigns to a redirection and bash to the command."""
        self.statements: list[Node] = []
        """The nodes after a heredoc on its first line."""

    def settle(self, by: str) -> None:
        """Note the opened files, and for which program."""
        for word, access in self._opened:
            self._scene.redirect(word, access, by)

    def read(self, node: Node, check_gaps: CheckGaps) -> None:
        """Read a redirection."""
        match node.type:
            case "file_redirect":
                self._file(node, check_gaps)
            case "herestring_redirect":
                self._herestring(node)
            case _:
                self._heredoc(node, check_gaps)

    def _file(self, node: Node, check_gaps: CheckGaps) -> None:
        laid = laid_out(node)
        if laid[0][1] == "file_descriptor":
            if laid[0][3] != laid[1][2]:
                raise Unreadable("a redirection is not understood")
            del laid[0]
        operator = laid[0][1]
        children = [child for child, _, _, _ in laid]
        if operator in _CLOSES:
            if len(children) > 1:
                raise Unreadable("a redirection is not understood")
            return
        opens = _OPENS.get(operator)
        if opens is None or len(children) < 2:
            raise Unreadable(f"the redirection {operator!r} is not understood")
        check_gaps(children[1:])
        found = self._words(children[1])
        target = found[0] if len(found) == 1 else ANY_WORD
        for child in children[2:]:
            self.extra += self._words(child)
        if operator in ("<&", ">&") and (target.text or "x").rstrip("-").isdecimal():
            return
        if self._scene.posix and operator in ("&>", "&>>", ">&", "<&"):
            raise Unreadable(f"{operator} means different things to different shells")
        if operator == "<":
            self.stdin = None
        self._opened += [(target, access) for access in opens]

    def _herestring(self, node: Node) -> None:
        children = node.children
        if self._scene.posix or len(children) != 2 or children[0].type != "<<<":
            raise Unreadable("<<< means different things to different shells")
        self.stdin = self._word(children[1]).text

    def _heredoc(self, node: Node, check_gaps: CheckGaps) -> None:
        children = node.children
        for previous, following in pairwise(children):
            if self._scene.data[previous.end_byte : following.start_byte].strip(b" \t\n"):
                raise Unreadable("a heredoc is not understood")
        operator = children[0].type
        if operator not in ("<<", "<<-"):
            raise Unreadable("a heredoc is not understood")
        found: dict[str, Node] = {}
        for child in children[1:]:
            if child.type.startswith("heredoc_"):
                found[child.type] = child
            else:
                self._on_its_line(child, check_gaps)
        start, end = found.get("heredoc_start"), found.get("heredoc_end")
        if start is None or end is None or (self.statements and self.extra):
            raise Unreadable("a heredoc is not understood")
        body = found.get("heredoc_body")
        self.stdin = self._body(start, body, end, tabs=operator == "<<-")

    def _on_its_line(self, node: Node, check_gaps: CheckGaps) -> None:
        """Read what follows a heredoc on its first line."""
        if node.type == "file_redirect":
            self._file(node, check_gaps)
        elif node.type in _WORDS:
            self.extra += self._words(node)
        elif node.is_named:
            self.statements.append(node)
        elif node.type not in _OPERATORS:
            raise Unreadable("a heredoc is not understood")

    def _body(self, start: Node, body: Node | None, end: Node, *, tabs: bool) -> str | None:
        raw = (start.text or b"").decode()
        delimiter = raw.strip("'\"")
        quoted = delimiter != raw
        if not delimiter.replace("_", "").isalnum() or not delimiter.isascii():
            raise Unreadable("the end of a heredoc has an unusual name; call it EOF")
        if quoted and raw not in (f"'{delimiter}'", f'"{delimiter}"'):
            raise Unreadable("the end of a heredoc has an unusual name; call it EOF")
        around = self._scene.data
        before, after = around[: end.start_byte], around[end.end_byte : end.end_byte + 1]
        if not (before.rstrip(b"\t") if tabs else before).endswith(b"\n"):
            raise Unreadable("the end of a heredoc is not understood")
        if (end.text or b"").decode() != delimiter or after not in (b"", b"\n"):
            raise Unreadable("the end of a heredoc is not understood")
        data = (body.text or b"") if body is not None else b""
        lines = data.decode().split("\n")
        if any(line.strip() == delimiter for line in lines) or lines[-1].strip("\t" * tabs):
            raise Unreadable("the end of a heredoc is not understood")
        if quoted or body is None:
            return "\n".join(line.lstrip("\t") for line in lines) if tabs else "\n".join(lines)
        if b"\\\n" in data:
            raise Unreadable("lines of a heredoc are joined; quote its end, as in <<'EOF'")
        reader = WordReader(self._scene, self._substitute)
        text = unescape("".join(reader.live_text(body, data, 0, len(data), body.start_byte)))
        return None if text is None or tabs else text
