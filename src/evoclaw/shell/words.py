"""Words as the shell sees them: after quotes, escapes, braces and tildes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import ClassVar

from evoclaw.shell.analysis_state import AnalysisState
from evoclaw.shell.effects import (
    ANY_WORD,
    Unreadable,
    Word,
    escape,
    literal,
    unescape,
)
from evoclaw.shell.grammar import Node

PLAIN_NODE_TYPES = ("word", "number")
PLAIN_WORD = re.compile(rb"[A-Za-z0-9_./:@%+-][A-Za-z0-9_./:@%+=,-]*")
"""A word of these nodes that matches this is literal."""
_FIXED = {
    **dict.fromkeys(PLAIN_NODE_TYPES, PLAIN_WORD),
    "raw_string": re.compile(rb"'[^']*'"),
    "string": re.compile(rb'"[^"$`\\]*"'),
}
"""Node types, and the text with which a node is literal apart from its quotes."""
_SIMPLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!_-])")
_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LIVE = re.compile(r"\$[A-Za-z0-9_({\[@*#?$!-]|`")
"""Text that the shell expands inside double quotes."""
_LIVE_BARE = re.compile(r"[$`\"'()<>|&; \t\n]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_GROUP = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)(?<!\\)\}", re.DOTALL)
_SEQUENCE = re.compile(r"(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})")
_COMMA = re.compile(r"(?:[^,\\]|\\.)*", re.DOTALL)
_ANSI = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|.)", re.S)
_ANSI_SIGNS = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_SUM = re.compile(r"[\w\s+\-*/%<>=!&|^~?:,()$#]*", re.ASCII)
_SUM_NAME = re.compile(r"(?<![0-9A-Za-z_])[A-Za-z_]\w*", re.ASCII)
_SUM_CHANGE = re.compile(r"\+\+|--|(?<![<>=!])=(?!=)|<<=|>>=")
_NUMBER = Word("0", "0")
_OPERATORS = frozenset(
    {"${", "}", "#", "##", "%", "%%", "/", "//", "/#", "/%", ":-", "-", ":+", "+", ":?", "?"}
    | {":=", "=", "^", "^^", ",", ",,"}
)
MAX_BRACE_WORDS = 64

Substitute = Callable[[Node], None]


def words(node: Node, scene: AnalysisState, substitute: Substitute) -> list[Word]:
    """The words that a node expands to; braces make several."""
    known = _at_a_glance(node, scene.data)
    if known is not None:
        return [known]
    reader = WordReader(scene, substitute)
    pattern = reader.cook(node)
    if "{" in pattern:
        patterns = braces(pattern) if not scene.posix else unsure_braces(pattern)
        if patterns is None:
            return [ANY_WORD]
        return [reader.finish(pattern) for pattern in patterns]
    return [reader.finish(pattern)]


def _at_a_glance(node: Node, data: bytes) -> Word | None:
    """The word of a node, if nothing in it can be expanded."""
    kind, start, end = node.type, node.start_byte, node.end_byte
    fixed = _FIXED.get(kind)
    if fixed is None or not fixed.fullmatch(data, start, end):
        return None
    text = data[start:end].decode()
    return Word(text, text) if kind in PLAIN_NODE_TYPES else literal(text[1:-1])


def word(node: Node, scene: AnalysisState, substitute: Substitute) -> Word:
    """The single word of a node where the shell does not expand braces."""
    reader = WordReader(scene, substitute)
    return reader.finish(reader.cook(node))


def braces(pattern: str) -> list[str] | None:
    """The expansion of braces; None if it is ambiguous."""
    pieces: list[list[str]] = []
    end = 0
    for group in _GROUP.finditer(pattern):
        options = _options(group[1])
        if options is None:
            continue
        pieces += [[pattern[end : group.start()]], options]
        end = group.end()
    rest = pattern[end:]
    made = ["".join(choice) for choice in product(*pieces, [rest])] if pieces else [pattern]
    if len(made) > MAX_BRACE_WORDS:
        return None
    # The rest may have nested or unbalanced braces: their expansion is ambiguous.
    remainder = _ESCAPED.sub("", "".join(piece[0] for piece in pieces[::2]) + rest)
    if "{" in remainder and ("," in remainder or ".." in remainder):
        return None
    return None if "}" in remainder and pieces else made


def unsure_braces(pattern: str) -> list[str] | None:
    """For a shell that may or may not expand braces."""
    bare = _ESCAPED.sub("", pattern)
    return None if "," in bare or ".." in bare else [pattern]


def _options(inside: str) -> list[str] | None:
    bare = _ESCAPED.sub("", inside)
    if "," in bare:
        return [found[0] for found in _split_commas(inside)]
    if found := _SEQUENCE.fullmatch(inside):
        first, last = int(found[1]), int(found[2])
        step = 1 if last >= first else -1
        if abs(last - first) < MAX_BRACE_WORDS and not re.search(r"(^|\.|-)0[0-9]", inside):
            return [str(number) for number in range(first, last + step, step)]
    return ["\0"] if ".." in bare else None


def _split_commas(inside: str) -> Iterator[re.Match[str]]:
    start = 0
    while True:
        found = _COMMA.match(inside, start)
        assert found is not None  # it may also match nothing
        yield found
        start = found.end() + 1
        if start > len(inside):
            return


class WordReader:
    """Reads a word."""

    def __init__(self, scene: AnalysisState, substitute: Substitute) -> None:
        self._scene, self._substitute = scene, substitute
        self._many = self._quoted = False

    def finish(self, pattern: str) -> Word:
        """A word from its pattern, with its tilde expanded."""
        if pattern.startswith("~"):
            pattern = self._tilde(pattern)
        elif "=~" in pattern or ":~" in pattern:
            head, sign, tail = pattern.partition("=~")
            pattern = head + "=" + self._tilde("~" + tail) if sign and ":~" not in head else "\0"
        text = unescape(pattern)
        if text is not None:
            return Word(pattern, text, self._many)
        return Word(pattern, None, self._many or any(sign in pattern for sign in "*?["))

    def _tilde(self, pattern: str) -> str:
        home = self._scene.value("HOME")
        if home is None or len(pattern) > 1 and pattern[1] != "/":
            return "\0"
        return home + pattern[1:]

    def cook(self, node: Node, *, quoted: bool = False) -> str:
        """The pattern of a node."""
        kind = node.type
        cook = self._COOKS.get(kind)
        if cook is None:
            if kind == "$":
                return "$"
            raise Unreadable(f"{kind.replace('_', ' ')} is not analysed")
        many, self._many, self._quoted = self._many, False, quoted
        pattern = cook(self, node)
        # Inside quotes only `"$@"` and similar expansions become several words.
        self._many = many or (self._many and (not quoted or "@" in self._text(node)))
        return pattern

    def _text(self, node: Node) -> str:
        # Not `node.text`, which is several times slower.
        return self._scene.data[node.start_byte : node.end_byte].decode()

    def _bare(self, node: Node) -> str:
        text = self._text(node)
        if _LIVE_BARE.search(_ESCAPED.sub("", text)) or text.endswith("\\"):
            raise Unreadable(f"{text[:40]!r} may be read in two ways")
        if "\\" not in text:
            return text
        pieces = re.split(r"(\\.)", text, flags=re.DOTALL)
        return "".join(escape(piece[1:]) if piece[:1] == "\\" else piece for piece in pieces)

    def _joined(self, node: Node) -> str:
        end = node.start_byte
        pieces: list[str] = []
        for child in node.children:
            if child.start_byte != end:
                raise Unreadable("a word has a gap in it")
            end = child.end_byte
            pieces.append(self.cook(child))
        # The expanded text may contain the other half of a bracket or a brace.
        return "".join(pieces)

    def _raw(self, node: Node) -> str:
        text = self._text(node)
        if len(text) < 2 or text[0] + text[-1] != "''" or "'" in text[1:-1]:
            raise Unreadable("a quoted word may be read in two ways")
        return escape(text[1:-1])

    def _ansi(self, node: Node) -> str:
        text = self._text(node)
        if self._scene.posix or not text.startswith("$'") or not text.endswith("'"):
            raise Unreadable("$'…' means different things to different shells")

        def decode(found: re.Match[str]) -> str:
            what = found[1]
            if what[0] in "xuU" and len(what) > 1:
                number = int(what[1:], 16)
            elif what[0] in "01234567":
                number = int(what, 8)
            elif what in _ANSI_SIGNS:
                return _ANSI_SIGNS[what]
            else:
                raise Unreadable(f"\\{what} in $'…' is not analysed")
            if not 0 < number < 0x80:
                raise Unreadable(f"\\{what} in $'…' is not analysed")
            return chr(number)

        return escape(_ANSI.sub(decode, text[2:-1]))

    def _string(self, node: Node) -> str:
        start = node.start_byte
        data = self._scene.data[start : node.end_byte]
        if data[:1] != b'"' or data[-1:] != b'"' or len(data) < 2:
            raise Unreadable("a quoted word may be read in two ways")
        return "".join(self.live_text(node, data, 1, len(data) - 1, start))

    def live_text(
        self, node: Node, data: bytes, begin: int, end: int, offset: int
    ) -> Iterator[str]:
        """The patterns of a text with expansions in it: a string, or the body of a heredoc."""
        for child in node.children:
            if not child.is_named or child.type in ("string_content", "heredoc_content"):
                continue
            text = child.text or b""
            # The grammar includes blanks before an expansion in its node.
            blanks = len(text) - len(text.lstrip())
            start = child.start_byte - offset + blanks
            yield _quoted(data[begin:start])
            if data[start : start + 1] not in (b"$", b"`"):
                raise Unreadable(f"{child.type.replace('_', ' ')} in quotes is not analysed")
            yield self.cook(child, quoted=True)
            begin = child.end_byte - offset
        yield _quoted(data[begin:end])

    def _simple(self, node: Node) -> str:
        found = _SIMPLE.fullmatch(self._text(node).lstrip())
        if found is None:
            raise Unreadable("a variable may be read in two ways")
        value = self._scene.value(found[1], quoted=self._quoted)
        if value is not None:
            return value
        self._many = found[1] not in ("?", "#", "$", "!")
        return "\0"

    def _expansion(self, node: Node) -> str:
        text = self._text(node).lstrip()
        if found := _NAME.fullmatch(text):
            value = self._scene.value(found[1], quoted=self._quoted)
            if value is not None:
                return value
        self._many = True
        self._check_expansion(node)
        return "\0"

    def _check_expansion(self, node: Node) -> None:
        name, assigns = "", False
        for child in node.children:
            kind = child.type
            text = self._text(child).strip()
            if kind == "variable_name" and not name:
                name = text
            elif kind == "subscript":
                self._check_subscript(child)
            elif kind in ("regex", "special_variable_name", "variable_name", "word", "number"):
                if re.search(r"[$`\"'{}\\]", text):
                    raise Unreadable(f"{text[:40]!r} may be read in two ways")
            elif child.is_named:
                self.cook(child)
            elif text not in _OPERATORS or text in ("?", ":?") and name == "":
                raise Unreadable(f"${{…{text}…}} is not analysed")
            assigns = assigns or text in ("=", ":=")
        if assigns:
            self._scene.assign(name, None)

    def _check_subscript(self, node: Node) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*\[([0-9]+|@|\*)\]", self._text(node), re.ASCII):
            raise Unreadable("an array's index is calculated")

    def _substitution(self, node: Node) -> str:
        self._many = True
        self._substitute(node)
        return "\0"

    def _process(self, node: Node) -> str:
        if self._scene.posix:
            raise Unreadable("<(…) means different things to different shells")
        self._substitute(node)
        return "/dev/fd/63"

    def _arithmetic(self, node: Node) -> str:
        text = self._text(node).lstrip()
        if not (text.startswith("$((") and text.endswith("))")):
            raise Unreadable("arithmetic may be read in two ways")
        calculate(text[3:-2], self._scene)
        return "\0"

    _COOKS: ClassVar[dict[str, Callable[[WordReader, Node], str]]] = {
        "word": _bare,
        "number": _bare,
        "brace_expression": _bare,
        "test_operator": _bare,
        "variable_name": _bare,
        "concatenation": _joined,
        "raw_string": _raw,
        "ansi_c_string": _ansi,
        "string": _string,
        "simple_expansion": _simple,
        "expansion": _expansion,
        "command_substitution": _substitution,
        "process_substitution": _process,
        "arithmetic_expansion": _arithmetic,
    }


def calculate(text: str, scene: AnalysisState) -> None:
    """Check arithmetic: its variables must be numbers, as anything else may run commands."""
    if not _SUM.fullmatch(text) or re.search(r"\$[^A-Za-z_#?]|\$$", text):
        raise Unreadable("arithmetic is calculated from more than numbers")
    changes = _SUM_CHANGE.search(text) is not None
    for name in _SUM_NAME.findall(text):
        scene.evaluate(name)
        if changes:
            scene.assign(name, _NUMBER)


def _quoted(data: bytes) -> str:
    text = data.decode()
    if _LIVE.search(_ESCAPED.sub("", text)):
        raise Unreadable("an expansion in quotes is not understood")
    if "\\" in text:
        text = _IN_QUOTES.sub(lambda found: found[1].strip("\n"), text)
    return escape(text)
