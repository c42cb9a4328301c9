"""Quarantine: text from outside is kept behind a handle, and the model never sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from evoclaw.core.messages import ErrorKind, ImageBlock, TextBlock, ToolResult
from evoclaw.core.pipeline import AroundStep, Execution, OfferStep, ResultStep
from evoclaw.core.routes import Place
from evoclaw.core.tools import Call, Tool

MAX_KEPT_CHARS = 400_000
"""Of one text."""


class Quarantine(OfferStep, AroundStep, ResultStep):
    """Replaces text from outside by a handle, which only `read_untrusted` can ask about.

    The text itself goes into the result's details, which are recorded and never sent to a model:
    it is there after a restart, for the one tool that may ask about it.
    """

    def __init__(self, kept: str) -> None:
        """`kept` is the detail under which the asking tool looks for the text."""
        self._kept = kept
        self._outside: frozenset[str] = frozenset()

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Clear the label of outside tools: what they bring does not get further than here."""
        self._outside = frozenset(tool.name for tool in tools if tool.outside)
        return [replace(tool, outside=False) if tool.outside else tool for tool in tools]

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Drop what an outside tool reports while it runs: it is as little to be trusted."""
        if self._hides(execution):
            execution.progress = lambda text: None
        yield

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Keep the text, and say under which handle."""
        return self._hidden(execution.call, result) if self._hides(execution) else result

    def _hides(self, execution: Execution) -> bool:
        asked = execution.route.place is Place.MODEL
        return not asked and execution.call.name in self._outside

    def _hidden(self, call: Call, result: ToolResult) -> ToolResult:
        texts = [block.text for block in result.blocks if not isinstance(block, ImageBlock)]
        text, pictures = "\n".join(texts), len(result.blocks) - len(texts)
        handle = _handle(call)
        kept = {
            self._kept: {"handle": handle, "text": text[:MAX_KEPT_CHARS], "characters": len(text)}
        }
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
