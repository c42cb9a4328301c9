"""Arguments mean one thing or are refused; the model is told why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.arguments import BadArguments, parse_arguments

REFUSED = {
    "truncated": '{"a": ',
    "trailing": '{"a": 1} x',
    "two values": '{"a": 1}{"b": 2}',
    "single quotes": "{'a': 1}",
    "trailing comma": '{"a": 1,}',
    "comment": '{"a": 1 /* hi */}',
    "NaN": '{"a": NaN}',
    "Infinity": '{"a": -Infinity}',
    "hex": '{"a": 0x10}',
    "leading zero": '{"a": 01}',
    "control character": '{"a": "\x01"}',
    "bad escape": '{"a": "\\x"}',
    "lone surrogate": '{"a": "\\ud800"}',
    "raw lone surrogate": '{"a": "\ud800"}',
    "huge exponent": '{"a": 1e999}',
    "million digits": '{"a": ' + "9" * 1_000_000 + "}",
    "deep": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "duplicate": '{"a": 1, "a": 2}',
    "duplicate inside": '{"x": [{"a": 1, "a": 2}]}',
    "duplicate by escape": '{"a": 1, "\\u0061": 2}',
    "array": "[1]",
    "string": '"a"',
    "null": "null",
    "number": "1",
    "too long": '{"a": "' + "x" * 4_000_001 + '"}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_fault_45_arguments_that_are_malformed_or_ambiguous_are_refused(name: str) -> None:
    with pytest.raises(BadArguments):
        parse_arguments(REFUSED[name])


@pytest.mark.parametrize("text", ["", "  ", "{}", " { } "])
def test_empty_arguments_are_an_empty_object(text: str) -> None:
    assert parse_arguments(text) == {}


def test_colons_inside_strings_are_not_keys() -> None:
    assert parse_arguments('{"code": "{\\"a\\": 1, \\"a\\": 2}"}') == {"code": '{"a": 1, "a": 2}'}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_valid_json_arguments_are_parsed_unchanged(value: dict[str, object]) -> None:
    assert parse_arguments(json.dumps(value)) == value


@given(st.text(max_size=200))
def test_no_text_crashes_the_argument_parser(text: str) -> None:
    try:
        parse_arguments(text)
    except BadArguments as error:
        assert str(error)
