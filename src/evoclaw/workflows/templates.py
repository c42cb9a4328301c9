"""Templates: values with `{{ … }}` expressions, filled in when a step starts.

A text that consists of one expression becomes the value of the expression, of whatever type; an
expression within other text becomes text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from evoclaw.core.encoding import json_text
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.workflows.expression_parser import parse_expression
from evoclaw.workflows.expressions import (
    BadExpression,
    Expression,
    Reference,
    evaluate,
    references,
    resolve,
)

MAX_FILLED_CHARS = 1_000_000
"""Maximum length of a text after it is filled in."""

TemplateParts: TypeAlias = tuple[str | Expression, ...]

# Quoted text is skipped: it may contain closing brackets itself.
_INSIDE = re.compile(r"""(?:[^'"}]|\}(?!\})|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*+""", re.DOTALL)


@lru_cache(maxsize=1024)
def parse_template(text: str) -> TemplateParts:
    """The texts and expressions of a template; `BadExpression` says what is wrong with it."""
    found: list[str | Expression] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        inside = _INSIDE.match(text, start + 2)
        end = inside.end() if inside else start
        if not text.startswith("}}", end):
            raise BadExpression(f"{text[start : start + 30]!r} is not closed; write {{{{ … }}}}")
        if start > at:
            found.append(text[at:start])
        found.append(parse_expression(text[start + 2 : end]))
        at = end + 2
    if at < len(text):
        found.append(text[at:])
    return tuple(found)


def fill(value: JSON, scope: Mapping[str, JSON]) -> JSON:
    """A value with all its templates filled in.

    Raises `ReferenceNotFound` if a lone reference does not exist, and `ExpressionFailed`.
    """
    if isinstance(value, str):
        return _filled(parse_template(value), scope) if "{{" in value else value
    if is_array(value):
        return [fill(child, scope) for child in value]
    if is_object(value):
        return {key: fill(child, scope) for key, child in value.items()}
    return value


def fill_text(value: str, scope: Mapping[str, JSON]) -> str:
    """A template filled in as text, also if it is a single expression."""
    return json_text(fill(value, scope))


def references_in(value: JSON) -> Iterator[Reference]:
    """Every reference in the templates of a value."""
    if isinstance(value, str):
        for piece in parse_template(value) if "{{" in value else ():
            if not isinstance(piece, str):
                yield from references(piece)
    elif is_object(value):
        yield from references_in(list(value.values()))
    elif is_array(value):
        for child in value:
            yield from references_in(child)


def _filled(parts: Sequence[str | Expression], scope: Mapping[str, JSON]) -> JSON:
    if len(parts) == 1 and not isinstance(parts[0], str):
        return _value(parts[0], scope)
    texts = [part if isinstance(part, str) else json_text(_value(part, scope)) for part in parts]
    if sum(map(len, texts)) > MAX_FILLED_CHARS:
        raise BadExpression(f"the text would be longer than {MAX_FILLED_CHARS} characters")
    return "".join(texts)


def _value(expression: Expression, scope: Mapping[str, JSON]) -> JSON:
    # A lone reference to a missing value is a mistake; `x or 'none'` states a default.
    if isinstance(expression, Reference):
        return resolve(expression, scope)
    return evaluate(expression, scope)
