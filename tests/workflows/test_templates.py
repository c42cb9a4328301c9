"""Templates: values stay what they are, and text becomes text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.workflows.expressions import BadExpression, ReferenceNotFound
from evoclaw.workflows.templates import fill, references_in

SCOPE: dict[str, Any] = {"inputs": {"n": 3, "host": "pi", "list": [1, None], "none": None}}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{ inputs.n }}", 3),
        ("{{inputs.list}}", [1, None]),
        ("{{ inputs.none }}", None),
        (" {{ inputs.n }}", " 3"),
        ("{{ inputs.host }}-{{ inputs.list }}-{{ inputs.none }}", "pi-[1,null]-null"),
        ("{{ inputs.other or 'no' }}", "no"),
        ("{{ '}}' }}{{ \"{{\" }}", "}}{{"),
        ({"a": ["{{ inputs.n }}", 1]}, {"a": [3, 1]}),
        ("no braces } { here", "no braces } { here"),
    ],
)
def test_templates_are_filled_in(template: object, filled: object) -> None:
    assert fill(template, SCOPE) == filled


def test_a_lone_reference_without_a_value_is_an_error() -> None:
    with pytest.raises(
        ReferenceNotFound, match="inputs.nope does not exist: inputs has host, list, n, none"
    ):
        fill("{{ inputs.nope }}", SCOPE)


@pytest.mark.parametrize("template", ["{{ inputs.n", "{{ }}", "a {{ 'x }}", "{{ inputs. }}"])
def test_an_unclosed_or_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(BadExpression):
        fill(template, SCOPE)


@given(values)
def test_a_lone_reference_keeps_the_type_of_its_value(value: object) -> None:
    assert fill("{{ v }}", {"v": value}) == value


@given(
    st.lists(st.text("ab }'\"\\", max_size=6) | st.integers(0, 4), max_size=6),
    st.lists(values, min_size=5, max_size=5),
)
def test_text_and_values_are_joined_in_order(parts: list[Any], given_: list[Any]) -> None:
    """Against the same done by hand, piece by piece."""
    scope = {f"v{number}": value for number, value in enumerate(given_)}
    template = "|".join(f"{{{{ v{part} }}}}" if isinstance(part, int) else part for part in parts)
    by_hand = "|".join(
        part
        if isinstance(part, str)
        else given_[part]
        if isinstance(given_[part], str)
        else msgspec.json.encode(given_[part]).decode()
        for part in parts
    )
    filled = fill(template, scope)

    alone = len(parts) == 1 and isinstance(parts[0], int)
    assert filled == (given_[parts[0]] if alone else by_hand)


@given(values)
def test_filled_in_values_are_never_expanded_again(value: object) -> None:
    sneaky = {"text": "{{ inputs.secret }}", "value": value}

    assert fill("{{ v }}", {"v": sneaky}) == sneaky
    assert "{{ inputs.secret }}" in fill("x{{ v.text }}", {"v": sneaky})


def test_references_in_templates_are_found() -> None:
    found = references_in({"a": ["{{ inputs.x }} {{ steps.y.output or inputs.z }}"], "b": 1})

    assert [one.text for one in found] == ["inputs.x", "steps.y.output", "inputs.z"]
