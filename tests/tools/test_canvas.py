"""The tool `canvas` over a page on the disk."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from evoclaw.core.canvases import Canvas
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.executors.canvases import FileCanvas
from evoclaw.executors.local import LocalExecutor
from evoclaw.tools.canvas import canvas


async def use(path: Path, **arguments: JSON) -> ToolResult:
    executor = LocalExecutor([canvas], given={Canvas: FileCanvas(path)})
    return await executor.execute(Call("c", canvas.tool, arguments, "r.1.0.1", 10), print)


async def test_shown_canvas_content_is_in_the_html_file_and_the_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.html"
    assert (await use(path, action="snapshot")).text == "nothing is shown"

    shown = await use(path, action="show", content="<b>42 &amp; more</b>", title="The <answer>")

    assert shown.details["where"] == path.as_uri()
    frame = re.search(r'srcdoc="([^"]*)"', path.read_text())
    assert frame is not None
    inner = html.unescape(frame[1])
    assert inner.endswith("<h1>The &lt;answer&gt;</h1><b>42 &amp; more</b>")
    back = await use(path, action="snapshot")
    assert back.text == "[The <answer> (html)]\n<b>42 &amp; more</b>"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_canvas_content_cannot_escape_its_sandboxed_iframe(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    hostile = '"></iframe><script>top.location="https://example.org"</script>'

    await use(path, action="show", content=hostile)

    text = path.read_text()
    assert text.count("<iframe") == text.count("</iframe>") == 1
    assert "<script" not in text, "only inside the frame, quoted"
    assert 'sandbox="allow-scripts"' in text and "default-src 'none'" in text


async def test_canvas_markdown_is_shown_verbatim(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    await use(path, action="show", content="# <Title>", format="markdown")
    assert "&lt;pre&gt;# &amp;lt;Title&amp;gt;&lt;/pre&gt;" in path.read_text()


async def test_the_canvas_can_be_cleared_and_empty_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    await use(path, action="show", content="x")
    await use(path, action="clear")
    assert not path.exists() and (await use(path, action="snapshot")).text == "nothing is shown"
    with pytest.raises(ToolFailure, match="Set `content`"):
        await use(path, action="show", content="  ")
