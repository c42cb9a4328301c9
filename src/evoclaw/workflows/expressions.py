"""Expressions over inputs and outputs: references, comparisons, and, or, not; no function calls.

`a or b` is the first that is true, `a and b` the first that is not, as in Python; a reference to a
missing value is null. Evaluation is fast and has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array, is_object

_PLAIN = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


class BadExpression(EvoClawError):
    """The text is not a valid expression."""


class ExpressionFailed(EvoClawError):
    """The expression has no value: its operands cannot be compared."""


class Literal(Struct, frozen=True, tag=True):
    """A literal value."""

    value: JSON


class Reference(Struct, frozen=True, tag=True):
    """A path to a value: `steps.disk.output.lines[0]`."""

    path: tuple[str | int, ...]

    @property
    def text(self) -> str:
        """The reference as text."""
        return _path_text(self.path)


class ArrayExpression(Struct, frozen=True, tag=True):
    """An array of expressions in brackets."""

    items: tuple[Expression, ...]


class Negation(Struct, frozen=True, tag=True):
    """`not`."""

    inner: Expression


class BooleanExpression(Struct, frozen=True, tag=True):
    """`and` or `or` of two or more expressions."""

    operator: str
    items: tuple[Expression, ...]


class ComparisonExpression(Struct, frozen=True, tag=True):
    """A comparison of two values."""

    operator: str
    left: Expression
    right: Expression


Expression: TypeAlias = (
    Literal | Reference | ArrayExpression | Negation | BooleanExpression | ComparisonExpression
)


class ReferenceNotFound(EvoClawError):
    """The value of a reference does not exist."""


def references(expression: Expression) -> Iterator[Reference]:
    """Every reference of an expression, in the order written."""
    match expression:
        case Reference():
            yield expression
        case ArrayExpression(items) | BooleanExpression(_, items):
            for item in items:
                yield from references(item)
        case Negation(inner):
            yield from references(inner)
        case ComparisonExpression(_, left, right):
            yield from references(left)
            yield from references(right)
        case Literal():
            pass


def evaluate(expression: Expression, scope: Mapping[str, JSON]) -> JSON:
    """The value of an expression; `ExpressionFailed` if it has none."""
    match expression:
        case Literal(value):
            return value
        case Reference():
            try:
                return resolve(expression, scope)
            except ReferenceNotFound:
                return None
        case ArrayExpression(items):
            return [evaluate(item, scope) for item in items]
        case Negation(inner):
            return not truth(evaluate(inner, scope))
        case BooleanExpression(word, items):
            return _joined(word, items, scope)
        case ComparisonExpression(sign, left, right):
            return _compared(sign, evaluate(left, scope), evaluate(right, scope))


def resolve(reference: Reference, scope: Mapping[str, JSON]) -> JSON:
    """The value of a reference; `ReferenceNotFound` if it does not exist."""
    value: JSON = dict(scope)
    for depth, part in enumerate(reference.path):
        if not _has(value, part):
            at = _path_text(reference.path[:depth])
            raise ReferenceNotFound(
                f"{reference.text} does not exist: {_describe_available(value, at)}"
            )
        value = value[part]
    return value


def _has(value: JSON, part: str | int) -> bool:
    if isinstance(part, str):
        return is_object(value) and part in value
    return is_array(value) and -len(value) <= part < len(value)


def truth(value: JSON) -> bool:
    """Whether a value counts as true: all but null, false, 0 and empty values."""
    return bool(value)


def json_equal(left: JSON, right: JSON) -> bool:
    """Whether two JSON values are equal; true is not 1, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if is_array(left) and is_array(right):
        return len(left) == len(right) and all(map(json_equal, left, right))
    if is_object(left) and is_object(right):
        return left.keys() == right.keys() and all(
            json_equal(left[key], right[key]) for key in left
        )
    return left == right


def _describe_available(value: JSON, at: str) -> str:
    if is_object(value):
        return f"{at} has {', '.join(sorted(value)[:10]) or 'nothing'}"
    if is_array(value):
        return f"{at} has {len(value)} items"
    return f"{at} is {_kind(value)}"


def _path_text(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{msgspec.json.encode(part).decode()}]"
    return text


def _joined(word: str, items: Sequence[Expression], scope: Mapping[str, JSON]) -> JSON:
    value: JSON = None
    for item in items:
        value = evaluate(item, scope)
        if truth(value) is (word == "or"):
            break
    return value


def _compared(sign: str, left: JSON, right: JSON) -> bool:
    match sign:
        case "==":
            return json_equal(left, right)
        case "!=":
            return not json_equal(left, right)
        case "in":
            return _within(left, right)
        case "contains":
            return _within(right, left)
        case _:
            return _ordered(sign, left, right)


def _within(item: JSON, container: JSON) -> bool:
    if container is None:
        return False
    if is_array(container):
        return any(json_equal(item, member) for member in container)
    if isinstance(item, str) and (isinstance(container, str) or is_object(container)):
        return item in container
    raise ExpressionFailed(f"cannot look for {_kind(item)} in {_kind(container)}")


def _ordered(sign: str, left: JSON, right: JSON) -> bool:
    texts = isinstance(left, str) and isinstance(right, str)
    if not (texts or (_is_number(left) and _is_number(right))):
        problem = f"cannot compare {_kind(left)} with {_kind(right)} by {sign}"
        raise ExpressionFailed(f"{problem}; compare two numbers or two texts")
    match sign:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: JSON) -> str:
    if value is None:
        return "null"
    for kind, name in (bool, "a boolean"), (str, "a text"), (list, "an array"), (dict, "an object"):
        if isinstance(value, kind):
            return name
    return "a number"
