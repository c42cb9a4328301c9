"""What a device says is shown as one plain line."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from evoclaw.orchestrator.sanitizing import one_line, plain_text


@given(st.text(max_size=60))
def test_one_line_keeps_only_visible_characters(text: str) -> None:
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    seen = "".join(" " if unicodedata.category(one) in hidden else one for one in text)
    assert one_line(text, 1_000) == " ".join(seen.split())


def test_control_and_bidi_characters_are_removed_and_plain_text_is_kept() -> None:
    assert one_line("a\x1b[31mb\u202ec\u200bd\ne") == "a [31mb c d e"
    assert plain_text("über\nalles\t!") == "über\nalles !"
