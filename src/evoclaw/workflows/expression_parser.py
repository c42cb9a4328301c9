"""A recursive descent parser for expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from evoclaw.core.messages import JSON
from evoclaw.workflows.expressions import (
    ArrayExpression,
    BadExpression,
    BooleanExpression,
    ComparisonExpression,
    Expression,
    Literal,
    Negation,
    Reference,
)

MAX_EXPRESSION_CHARS = 4_000
MAX_EXPRESSION_DEPTH = 40
"""How deep brackets and `not` may be nested."""

COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "in", "contains")
LITERAL_WORDS: Mapping[str, JSON] = {"true": True, "false": False, "null": None}
RESERVED = frozenset({*LITERAL_WORDS, "and", "or", "not", "in", "contains"})

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<text>"(?:[^"\\\x00-\x1f]|\\.)*"|'(?:[^'\\\x00-\x1f]|\\.)*')
    | (?P<word>[A-Za-z_][\w-]*)
    | (?P<sign>==|!=|<=|>=|[<>()\[\],.])
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


def parse_expression(text: str) -> Expression:
    """Parse an expression; `BadExpression` says what is wrong with it."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise BadExpression(f"the expression is longer than {MAX_EXPRESSION_CHARS} characters")
    return _Parser(list(_tokens(text))).parse()


Token: TypeAlias = tuple[str, str, int]
"""Kind, text and position."""


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            rest = text[at:].strip()
            raise BadExpression(f"cannot read {rest[:20]!r}")
        yield found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)
        at = found.end()


class _Parser:
    """Parses a list of tokens; each method is a rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def parse(self) -> Expression:
        if not self._tokens:
            raise BadExpression("the expression is empty")
        expression = self._junction("or")
        if self._at < len(self._tokens):
            raise self._error("an end, `and`, `or` or a comparison")
        return expression

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _kind_ahead(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self, text: str) -> bool:
        if self._peek() != text or self._kind_ahead() == "text":
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"{text!r}")

    def _error(self, wanted: str) -> BadExpression:
        if self._at < len(self._tokens):
            return BadExpression(f"expected {wanted}, found {self._peek()[:20]!r}")
        return BadExpression(f"expected {wanted}, but the expression ends")

    def _junction(self, word: str) -> Expression:
        inner = self._negation if word == "and" else lambda: self._junction("and")
        items = [inner()]
        while self._take(word):
            items.append(inner())
        return items[0] if len(items) == 1 else BooleanExpression(word, tuple(items))

    def _negation(self) -> Expression:
        if not self._take("not"):
            return self._comparison()
        self._enter()
        inner = self._negation()
        self._depth -= 1
        return Negation(inner)

    def _comparison(self) -> Expression:
        left = self._value()
        sign = next((sign for sign in COMPARISONS if self._take(sign)), "")
        if not sign:
            return left
        expression = ComparisonExpression(sign, left, self._value())
        if self._peek() in COMPARISONS and self._kind_ahead() != "text":
            raise BadExpression("compare two values at a time; use `and`, or brackets")
        return expression

    def _value(self) -> Expression:
        kind, text = self._kind_ahead(), self._peek()
        if self._take("("):
            self._enter()
            inner = self._junction("or")
            self._expect(")")
            self._depth -= 1
            return inner
        if self._take("["):
            return ArrayExpression(tuple(self._items()))
        if kind in ("number", "text"):
            self._at += 1
            return Literal(_number(text) if kind == "number" else unquoted(text))
        if kind != "word" or (text in RESERVED and text not in LITERAL_WORDS):
            raise self._error("a value")
        self._at += 1
        return Literal(LITERAL_WORDS[text]) if text in LITERAL_WORDS else self._reference(text)

    def _items(self) -> Iterator[Expression]:
        self._enter()
        while not self._take("]"):
            yield self._junction("or")
            if self._peek() != "]":
                self._expect(",")
        self._depth -= 1

    def _reference(self, first: str) -> Reference:
        path: list[str | int] = [first]
        while True:
            if self._take("."):
                if self._kind_ahead() != "word":
                    raise self._error("a name after '.'")
                path.append(self._peek())
                self._at += 1
            elif self._take("["):
                path.append(self._key())
                self._expect("]")
            else:
                return Reference(tuple(path))

    def _key(self) -> str | int:
        kind, text = self._kind_ahead(), self._peek()
        if kind == "text":
            self._at += 1
            return unquoted(text)
        if kind == "number" and re.fullmatch(r"-?\d{1,9}", text):
            self._at += 1
            return int(text)
        raise self._error("a whole number or a quoted name between '[' and ']'")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_EXPRESSION_DEPTH:
            raise BadExpression(f"the expression is nested more than {MAX_EXPRESSION_DEPTH} deep")


def _number(text: str) -> int | float:
    try:
        return msgspec.json.decode(text, type=int | float)
    except msgspec.DecodeError:
        raise BadExpression(f"{text[:20]} is too large") from None


def unquoted(text: str) -> str:
    """The value of a quoted text."""

    def unescaped(found: re.Match[str]) -> str:
        if found[1] not in _ESCAPES:
            raise BadExpression(f"unknown escape {found[0]!r}")
        return _ESCAPES[found[1]]

    return re.sub(r"\\(.)", unescaped, text[1:-1])
