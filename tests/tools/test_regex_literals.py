"""What every match must hold is in every match."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.core.errors import ToolFailure
from evoclaw.tools.patterns import Regex, required_literal
from tests.support.properties import examples


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        ("needle", "needle"),
        (r"needle_\w+_haystack\b", "_haystack"),
        (r"a\.b\[c", "a.b[c"),
        (r"a\.b\(c", ""),
        ("colou?r", "colo"),
        ("abc*de", "ab"),
        ("ab+c", "ab"),
        ("ab{0,2}cd", "cd"),
        ("[]x]yz", "yz"),
        ("[^]x]yz", "yz"),
        ("[[:alpha:]x]yz", ""),
        ("one|two", ""),
        ("(maybe)?sure", ""),
        (r"\x41bc", ""),
        ("naïve.*", "naïve"),
        ("", ""),
    ],
)
def test_the_longest_required_literal_is_found(pattern: str, held: str) -> None:
    assert required_literal(pattern) == held


PIECES = st.sampled_from(
    [*"ab.*?+^$|é]", "ab", "{0,1}", "{2}", "[ab]", "[^a]", "[]a]", "[[:alpha:]b]", "(a)", "(?:b)?"]
    + [r"\.", r"\w", r"\b", r"\d", r"\[", r"\\", r"\x61", r"\pL"]
)


@settings(max_examples=examples(2_000), deadline=None)
@given(st.lists(PIECES, max_size=6), st.text("ab.[]\\é ", max_size=12))
def test_every_match_contains_the_required_literal(pieces: list[str], text: str) -> None:
    pattern = "".join(pieces)
    try:
        regex = Regex(b"(?m)" + pattern.encode(), text=True)
    except ToolFailure:
        return  # not a pattern
    if regex.find(text.encode()) is not None:
        assert required_literal(pattern) in text
