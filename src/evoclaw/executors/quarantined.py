"""`Quarantined`: what outsiders wrote is kept behind a handle, and the model never sees it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock, TextBlock, ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.wrapped import Wrapper

MOST = 400_000
"""Characters that are kept of one text."""


class Quarantined(Wrapper):
    """Replaces every text from outside by a handle; nothing an outsider wrote is in what is left.

    The text itself goes into the result's details, which are recorded and never sent to a model:
    it is there after a restart, for the one tool that may ask about it.
    """

    def __init__(self, inner: Executor, kept: str) -> None:
        """`kept` is the detail under which the asking tool looks for the text."""
        super().__init__(inner)
        self._kept = kept

    def change(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """What comes from outside does not get further than here."""
        return [replace(tool, outside=False) if tool.outside else tool for tool in tools]

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on, and keep what came back if it came from outside."""
        real = next((tool for tool in self.inner.tools() if tool.name == call.name), call.tool)
        if not real.outside:
            return await super().execute(call, progress)
        try:
            # What it says while it runs is as little to be trusted.
            result = await super().execute(call, lambda text: None)
        except ToolFailure as failure:
            result = call.failed(failure.kind, failure.message, **failure.details)
        return self._hidden(call, result)

    def _hidden(self, call: Call, result: ToolResult) -> ToolResult:
        texts = [block.text for block in result.blocks if not isinstance(block, ImageBlock)]
        text, pictures = "\n".join(texts), len(result.blocks) - len(texts)
        handle = _handle(call)
        kept = {self._kept: {"handle": handle, "text": text[:MOST], "characters": len(text)}}
        if result.error is not None:
            said = (
                f"It failed ({result.error}). What was said about it came from outside and is kept "
                f"as {handle}; ask about it with read_untrusted."
            )
            return call.failed(ErrorKind(result.error), said, **kept)
        left_out = f" {pictures} pictures were left out." if pictures else ""
        said = (
            f"{len(text)} characters came from outside. They are not shown; they are kept as "
            f"{handle}. Ask about them with read_untrusted.{left_out}"
        )
        return ToolResult(call.id, call.name, (TextBlock(said),), details=kept)


def _handle(call: Call) -> str:
    """A name that the same call always has, and that no outsider chose."""
    run, _, place = call.request_id.partition(".")
    return "-".join(("q", run[:6], *place.split(".")[:2]))
