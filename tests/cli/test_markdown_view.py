"""Markdown of a model as lines for a terminal."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.cli.markdown_view import MarkdownStream, Painter
from evoclaw.cli.terminal_text import clean
from tests.support.properties import examples

TEXT = """# Plan

Read *all* of [the page](https://example.org/a), then:

- first
- second

  with more

```python
def f():

    return 1
```

| a | b |
|---|---|
| 1 | 2 |

The end."""


def test_blocks_are_finished_as_soon_as_nothing_can_be_added_to_them() -> None:
    stream = MarkdownStream()
    steps = {
        "# Plan": "",
        "\n\nRead": "# Plan",
        " it.\n": "",
        "\n": "Read it.",
        "- one\n\n": "",  # a list may continue
        "  more of one\n\n": "",
        "Text.\n": "- one\n\n  more of one",
        "```\ncode\n\n": "Text.",
        "```\n": "```\ncode\n\n```",
        "rest": "",
    }

    assert {text: stream.feed(text).strip() for text in steps} == steps
    assert stream.take_rest() == "rest"


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_a_streamed_text_looks_like_the_whole_text_however_it_was_cut(sizes: list[int]) -> None:
    stream, rest, pieces, painter = MarkdownStream(), TEXT, list[str](), Painter(colour=True)
    for size in sizes:
        pieces.append(stream.feed(rest[:size]))
        rest = rest[size:]
    pieces += [stream.feed(rest), stream.take_rest()]

    assert "".join(pieces) == TEXT
    drawn = [painter.markdown(piece, 60) for piece in pieces if piece.strip()]
    whole = painter.markdown(TEXT, 60)
    assert re.sub("\n{3,}", "\n\n", "\n".join(drawn)) == re.sub("\n{3,}", "\n\n", whole)


@pytest.mark.parametrize("columns", [80, 40])
def test_markdown_fits_the_width_and_keeps_its_words(columns: int) -> None:
    drawn = Painter(colour=False).markdown(TEXT + " word" * 60, columns)

    assert max(map(len, drawn.splitlines())) <= columns
    for word in ("Plan", "first", "with more", "def f():", "return 1", "https://example.org/a"):
        assert word in drawn
    assert "\x1b[3" not in drawn, "no colours"
    assert not any(line.endswith(" ") for line in drawn.splitlines())


def test_code_is_highlighted_with_the_colours_of_the_terminal() -> None:
    drawn = Painter(colour=True).markdown("```python\ndef f(): return 'x'\n```", 80)

    assert "\x1b[" in drawn and "\x1b[38;2" not in drawn and "\x1b[48" not in drawn


@pytest.mark.parametrize(
    "hidden",
    ["\x1b[2J", "&#27;[2J", "&#x1b;]0;title&#7;", "&#x202e;", "\x9b2J", "a\rb", "`\x1b[2J`"],
)
def test_no_control_character_of_a_model_reaches_the_terminal(hidden: str) -> None:
    drawn = Painter(colour=False).markdown(f"before {hidden} after", 80)

    assert clean(drawn) == drawn
    assert "before" in drawn and "after" in drawn


def test_tags_and_line_breaks_of_a_model_are_shown() -> None:
    drawn = Painter(colour=False).markdown("one\ntwo <b>bold</b>\n\n<div>\nthree\n</div>\n", 80)

    assert drawn.splitlines() == ["one", "two <b>bold</b>", "", "<div>", "three", "</div>"]


def test_only_what_draws_imports_the_libraries_that_draw() -> None:
    code = (
        "import sys; import evoclaw.cli.chat, evoclaw.cli.run, evoclaw.cli.interactive_run; "
        "print(sorted({'prompt_toolkit', 'rich', 'markdown_it', 'pygments'} & {*sys.modules})); "
        "import evoclaw.cli.chat_terminal; "
        "print(sorted({'rich', 'markdown_it', 'pygments'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "[]\n[]\n", done.stderr
