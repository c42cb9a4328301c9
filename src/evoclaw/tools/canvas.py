"""The tool `canvas`: shows the user an HTML or Markdown page, and reads it back."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.canvases import Canvas, CanvasSheet
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock
from evoclaw.tools.define import tool

MAX_CONTENT_CHARS = 500_000
"""Of one sheet."""


@tool("ui", timeout=10, max_timeout=60, resources=(), acts=False)
async def canvas(
    board: Canvas,
    action: Literal["show", "snapshot", "clear"],
    content: Annotated[str, Meta(max_length=MAX_CONTENT_CHARS)] = "",
    format: Literal["html", "markdown"] = "html",
    title: Annotated[str, Meta(max_length=200)] = "",
) -> ToolOutput:
    """Show the user a page: a table, a chart, a form of your own making.

    `show` replaces what is there, `snapshot` returns what is shown, `clear` empties it. The page
    may use inline styles and scripts; it cannot load anything or reach the network.

    Args:
        board: Where it is shown.
        action: What to do.
        content: For `show`: the page.
        format: What the content is written in.
        title: For `show`: a heading.
    """
    match action:
        case "show":
            if not content.strip():
                raise ToolFailure(ErrorKind.INVALID_PARAMS, "Set `content` to the page to show.")
            where = await board.show(CanvasSheet(content, format, title))
            return _text_output(f"shown at {where}", where=where)
        case "clear":
            await board.clear()
            return _text_output("nothing is shown now")
        case "snapshot":
            sheet = await board.current()
            if sheet is None:
                return _text_output("nothing is shown")
            heading = f"{sheet.title} ({sheet.format})" if sheet.title else sheet.format
            return _text_output(
                f"[{heading}]\n{sheet.content}", format=sheet.format, title=sheet.title
            )


def _text_output(text: str, **details: str) -> ToolOutput:
    return ToolOutput((TextBlock(text),), dict(details))
