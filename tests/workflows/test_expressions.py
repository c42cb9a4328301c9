"""Expressions mean what Python means by them, and nothing can be done with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.workflows.expression_parser import parse_expression
from evoclaw.workflows.expressions import (
    ArrayExpression,
    BadExpression,
    BooleanExpression,
    ComparisonExpression,
    Expression,
    ExpressionFailed,
    Literal,
    Negation,
    Reference,
    evaluate,
    references,
)

SCOPE: dict[str, Any] = {
    "inputs": {"host": "pi", "count": 3, "quiet": False, "none": None, "tags": ["a", "b"]},
    "steps": {"disk": {"output": {"lines": ["x", {"used-%": 91}]}, "state": "succeeded"}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inputs.host == 'pi'", True),
        ("inputs.count > 2 and not inputs.quiet", True),
        ("inputs.count >= 4 or inputs.host != 'pi'", False),
        ("not inputs.quiet or inputs.nothing", True),
        ("inputs.missing.deeper", None),
        ("inputs.none or 'a default'", "a default"),
        ("steps.disk.output.lines[1]['used-%'] > 90", True),
        ("steps.disk.output.lines[-1]", {"used-%": 91}),
        ("'a' in inputs.tags", True),
        ("inputs.host contains 'p'", True),
        ("inputs.host in ['pi', 'nas']", True),
        ("'x' in inputs.none", False),
        ("true == 1", False),
        ("1 == 1.0", True),
        ("[1, [2]] == [1, [2]]", True),
        ("(inputs.count == 3) == true", True),
        ("-1.5e1 < 0", True),
        (r"'it\'s' == \"it's\"".replace('\\"', '"'), True),
    ],
)
def test_expressions_are_evaluated(text: str, value: object) -> None:
    assert evaluate(parse_expression(text), SCOPE) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("inputs.host ==", "but the expression ends"),
        ("inputs.host = 'pi'", "cannot read"),
        ("1 < 2 < 3", "two values at a time"),
        ("__import__('os')", "found '('"),
        ("inputs.host.upper()", "found '('"),
        ("inputs[0.5]", "whole number"),
        ("(1", "expected ')'"),
        ("'\\q'", "unknown escape"),
        ("1e999", "large"),
        ("not " * 50 + "true", "deep"),
        ("(" * 50 + "1" + ")" * 50, "deep"),
        ("x" * 5000, "longer"),
        ("and", "a value"),
    ],
)
def test_an_invalid_expression_is_refused_with_a_reason(text: str, problem: str) -> None:
    with pytest.raises(BadExpression, match=problem.replace("(", r"\(").replace(")", r"\)")):
        parse_expression(text)


@pytest.mark.parametrize("text", ["inputs.host < 3", "inputs.none > 1", "3 in inputs.host"])
def test_comparing_incompatible_types_fails(text: str) -> None:
    with pytest.raises(ExpressionFailed, match="cannot"):
        evaluate(parse_expression(text), SCOPE)


def test_references_are_found_anywhere_in_an_expression() -> None:
    found = references(
        parse_expression("not inputs.a or steps.b.output in [inputs.c[0], 'inputs.d']")
    )

    assert [one.text for one in found] == ["inputs.a", "steps.b.output", "inputs.c[0]"]


numbers = st.integers(-20, 20) | st.sampled_from([0.5, -2.25, 1.0])
literals = st.builds(Literal, numbers | st.booleans() | st.none() | st.text("ab'\"\\ ", max_size=3))
names = st.sampled_from(["a", "b", "c"])
roots = names.map(lambda name: Reference(("v", name)))


def grown(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return (
        st.builds(Negation, inner)
        | st.builds(BooleanExpression, st.sampled_from(["and", "or"]), several)
        | st.builds(
            ComparisonExpression, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner, inner
        )
        | st.lists(inner, max_size=2).map(lambda items: ArrayExpression(tuple(items)))
    )


expressions = st.recursive(literals | roots, grown, max_leaves=12)


def written(one: Expression) -> str:
    """An expression as text, with brackets around everything."""
    match one:
        case Literal(value):
            if isinstance(value, str):
                quoted = value.replace("\\", "\\\\").replace("'", "\\'")
                return f"'{quoted}'"
            words = {None: "null", True: "true", False: "false"}
            return words[value] if value is None or isinstance(value, bool) else repr(value)
        case Reference():
            return one.text
        case ArrayExpression(items):
            return f"[{', '.join(map(written, items))}]"
        case Negation(inner):
            return f"(not {written(inner)})"
        case BooleanExpression(word, items):
            return f"({f' {word} '.join(map(written, items))})"
        case ComparisonExpression(sign, left, right):
            return f"({written(left)} {sign} {written(right)})"


class Nope(Exception):
    pass


def meant(one: Expression, values: dict[str, Any]) -> Any:
    """What Python makes of it, one rule at a time."""
    match one:
        case Literal(value):
            return value
        case Reference(path):
            return values.get(str(path[1]))
        case ArrayExpression(items):
            return [meant(item, values) for item in items]
        case Negation(inner):
            return not meant(inner, values)
        case BooleanExpression(word, items):
            first, *rest = items
            left = meant(first, values)
            if not rest or bool(left) is (word == "or"):
                return left
            return meant(BooleanExpression(word, tuple(rest)), values)
        case ComparisonExpression(sign, left, right):
            return compare(sign, meant(left, values), meant(right, values))


def typed(value: Any) -> Any:
    """So that Python tells true from 1."""
    if isinstance(value, list):
        return [typed(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return (isinstance(value, bool), value)


def compare(sign: str, left: Any, right: Any) -> bool:
    if sign in ("==", "!="):
        return (typed(left) == typed(right)) is (sign == "==")
    kinds = [
        "text" if isinstance(one, str) else "number" if type(one) in (int, float) else "none"
        for one in (left, right)
    ]
    if kinds[0] != kinds[1] or kinds[0] == "none":
        raise Nope
    return bool(eval(f"left {sign} right", {"left": left, "right": right}))


@given(expressions, st.dictionaries(names, numbers | st.booleans() | st.text("ab", max_size=2)))
def test_parsed_expressions_evaluate_like_a_reference_implementation(
    expression: Expression, values: dict[str, Any]
) -> None:
    text = written(expression)
    try:
        wanted: object = meant(expression, values)
    except Nope:
        with pytest.raises(ExpressionFailed):
            evaluate(parse_expression(text), {"v": values})
        return
    assert typed(evaluate(parse_expression(text), {"v": values})) == typed(wanted)


@given(st.text("aand or not()[].'\"=<>! 12,\\-_", max_size=30))
def test_any_text_is_parsed_or_refused_without_a_crash(text: str) -> None:
    try:
        expression = parse_expression(text)
    except BadExpression:
        return
    try:
        evaluate(expression, {})
    except ExpressionFailed:
        return
