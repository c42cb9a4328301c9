"""Markdown, code, diffs and cards as text with ANSI styles: the only module that uses `rich`.

Every piece of text is cleaned after it was laid out: Markdown can spell control characters as
entities, which become characters only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import dropwhile
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from evoclaw.cli.terminal_text import clean

MAX_COLUMNS = 120
"""Columns of a text: longer lines are hard to read."""
CODE_THEME = "ansi_dark"
"""The sixteen colours of the terminal itself: readable on dark and light ones."""
_CLOSED_BY_A_BLANK_LINE = frozenset({"paragraph_open", "heading_open", "fence", "hr", "table_open"})
"""Blocks that nothing after a blank line belongs to; a list, for example, can continue."""
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan", "*": "cyan"}


def _parser() -> MarkdownIt:
    # Tags are text: a terminal has no other use for them, and must not hide them.
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _code(str(self.text).rstrip(), self.lexer_name)


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
    }


def _code(text: str, language: str) -> RenderableType:
    code = Syntax(
        text, language, theme=CODE_THEME, background_color="default", word_wrap=True, tab_size=4
    )
    return Padding(code, (0, 0, 0, 2))


class Painter:
    """Lays text out for a number of columns."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._parse = _parser()

    def markdown(self, text: str, columns: int) -> str:
        """Markdown as lines for a terminal."""
        view = _Markdown("", code_theme=CODE_THEME, hyperlinks=False)
        view.markup, view.parsed = text, self._parse.parse(clean(text))
        for token in view.parsed:
            for child in token.children or ():
                if child.type == "softbreak":  # models break lines where they want them broken
                    child.type = "hardbreak"
        return self._lines(view, columns)

    def card(
        self, title: str, body: Sequence[RenderableType], columns: int, *, style: str = "yellow"
    ) -> str:
        """A frame with a title around a body."""
        panel = Panel(
            Group(*body), title=Text(title), title_align="left", box=box.ROUNDED, border_style=style
        )
        return self._lines(panel, columns)

    def _lines(self, view: RenderableType, columns: int) -> str:
        console = Console(
            file=StringIO(),
            width=min(columns, MAX_COLUMNS),
            force_terminal=True,
            color_system="standard" if self._colour else None,
            legacy_windows=False,
            emoji=False,
            markup=False,
            highlight=False,
        )
        lines = [_cleaned(line) for line in console.render_lines(view, pad=False)]
        while lines and not lines[-1]:
            lines.pop()
        with console.capture() as captured:
            for line in dropwhile(lambda line: not line, lines):
                console.print(Segments([*line, Segment.line()]), end="", soft_wrap=True)
        return captured.get()


def _cleaned(line: Iterable[Segment]) -> list[Segment]:
    """The pieces of a line without control characters, and without blanks at its end."""
    found = [
        Segment(clean(piece.text).replace("\n", " "), piece.style)
        for piece in line
        if not piece.control
    ]
    while found and not found[-1].text.strip():
        found.pop()
    if found:
        found[-1] = Segment(found[-1].text.rstrip(), found[-1].style)
    return found


class MarkdownStream:
    """Splits Markdown that is still being written into finished blocks and the rest."""

    def __init__(self) -> None:
        self._parse = _parser()
        self._parse.core.ruler.enableOnly(["normalize", "block"])
        self.rest = ""
        """The text of the block that is not finished yet."""

    def feed(self, text: str) -> str:
        """Add text; returns the blocks that it finished, often none."""
        self.rest += text
        if "\n" not in text:
            return ""
        cut = self._finished_chars()
        finished, self.rest = self.rest[:cut], self.rest[cut:]
        return finished

    def take_rest(self) -> str:
        """The unfinished block, because no more text follows."""
        rest, self.rest = self.rest, ""
        return rest

    def _finished_chars(self) -> int:
        complete = self.rest[: self.rest.rfind("\n") + 1]
        lines = complete.splitlines(keepends=True)
        blocks = [
            (token, token.map)
            for token in self._parse.parse(complete)
            if token.level == 0 and token.nesting >= 0 and token.map
        ]
        if not blocks:
            return 0
        last, (start, end) = blocks[-1][0], blocks[-1][1]
        is_closed = last.type in _CLOSED_BY_A_BLANK_LINE and end < len(lines)
        is_closed = is_closed or (last.type == "fence" and _has_end(last, lines[start:end]))
        kept = end if is_closed else start
        return sum(map(len, lines[:kept]))


def _has_end(fence: Token, lines: Sequence[str]) -> bool:
    """Whether the end of a code block was written."""
    end = lines[-1].strip()
    return len(lines) > 1 and len(end) >= 3 and set(end) == {fence.markup[0]}


def diff_lines(lines: Iterable[str]) -> Text:
    """The lines of a diff, coloured by their first character."""
    text = Text()
    for line in lines:
        text.append(line.rstrip("\n") + "\n", _DIFF_STYLES.get(line[:1], ""))
    text.rstrip()
    return text


def code(text: str, language: str) -> RenderableType:
    """A piece of code with its syntax highlighted."""
    return _code(text, language)


def note(label: str, text: str) -> Text:
    """A labelled sentence."""
    return Text.assemble((f"{label} ", "bold"), text)
