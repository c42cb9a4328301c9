"""What sessions show, kept where several orchestrators see it."""

from __future__ import annotations

from evoclaw.core.canvases import Canvas
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.store.sessions.canvases import SCHEMA, StoredCanvas, StoredCanvases
from evoclaw.tools.canvas import canvas
from tests.support.databases import Place


async def use(board: StoredCanvas, **arguments: JSON) -> ToolResult:
    executor = LocalExecutor([canvas], given={Canvas: board})
    return await executor.execute(Call("c", canvas.tool, arguments, "r.1.0.1", 10), print)


async def test_a_canvas_is_visible_to_other_orchestrators_but_not_to_other_tenants(
    place: Place,
) -> None:
    one, two = await place.open(SCHEMA), await place.open(SCHEMA)
    try:
        ours = StoredCanvases(one, "the page", lambda: 42.0).of("local", "s")
        theirs = StoredCanvases(two, "the page")
        assert (await use(ours, action="snapshot")).text == "nothing is shown"
        assert await ours.changed_at() == 0.0
        for text in ("first", "<b>second</b>"):
            shown = await use(ours, action="show", content=text, title="T")
            assert shown.details["where"] == "the page"
        sheet = await theirs.of("local", "s").current()
        assert sheet is not None
        assert (sheet.content, sheet.format, sheet.title) == ("<b>second</b>", "html", "T")
        assert await theirs.of("local", "s").changed_at() == 42.0
        assert await theirs.of("local", "other").current() is None
        assert await theirs.of("other", "s").current() is None
        await theirs.of("local", "s").clear()
        assert (await use(ours, action="snapshot")).text == "nothing is shown"
    finally:
        await one.close()
        await two.close()
