from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.orchestrator.channels.chat.splitting import split_text, text_units
from tests.support.properties import examples

LIMIT = 200


def test_a_short_text_is_one_part() -> None:
    assert split_text("twelve minutes", LIMIT) == ["twelve minutes"]


def test_a_code_block_is_closed_and_opened_again_where_it_is_split() -> None:
    lines = [f"line {number}" for number in range(60)]
    text = "\n".join(["Look:", "```python", *lines, "```", "done"])
    parts = split_text(text, LIMIT)

    assert len(parts) > 2
    assert all(text_units(part) <= LIMIT for part in parts)
    assert all(part.count("```") % 2 == 0 for part in parts)
    assert all(part.startswith("```python\n") for part in parts[1:-1])
    kept = [line for part in parts for line in part.split("\n") if not line.startswith("```")]
    assert kept == ["Look:", *lines, "done"]


def test_a_fence_of_another_kind_inside_a_block_does_not_close_it() -> None:
    text = "\n".join(["````", "```", *["x" * 30] * 20, "```", "````"])
    assert all(part.split("\n")[-1] == "````" for part in split_text(text, LIMIT))


def test_characters_of_two_units_count_twice() -> None:
    parts = split_text("🍳" * 150, LIMIT)
    assert all(text_units(part) <= LIMIT for part in parts)
    assert "".join(parts) == "🍳" * 150


def test_a_long_line_is_split_between_words() -> None:
    parts = split_text("word " * 100, LIMIT)
    assert all(part.split() == ["word"] * part.count("word") for part in parts)


@settings(max_examples=examples(300))
@given(st.text(alphabet="ab \n`~🍳", max_size=800), st.integers(90, 300))
def test_no_part_is_too_long_and_nothing_but_fences_is_added(text: str, limit: int) -> None:
    parts = split_text(text, limit)
    assert all(text_units(part) <= limit for part in parts)
    assert "".join(parts).count("a") == text.count("a")
    assert "".join(parts).count("🍳") == text.count("🍳")
