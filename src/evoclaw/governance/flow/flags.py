"""What integrators say of tools, put onto the tools themselves."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.governance.flow.settings import FlowSettings


def reflagged(tool: Tool, settings: FlowSettings) -> Tool:
    """The tool with the flags that the settings give it; the same object if they give none."""
    if not (
        settings.trusted or settings.outside or settings.private or settings.acts
        or settings.sends or settings.harmless
    ):  # fmt: skip
        return tool
    name = tool.name
    outside = (tool.outside or _is(name, settings.outside)) and not _is(name, settings.trusted)
    private = tool.private or _is(name, settings.private)
    harmless = _is(name, settings.harmless)
    acts = False if harmless else True if _is(name, settings.acts) else tool.acts
    sends = (tool.sends or _is(name, settings.sends)) and not harmless
    if (outside, private, acts, sends) == (tool.outside, tool.private, tool.acts, tool.sends):
        return tool
    return replace(tool, outside=outside, private=private, acts=acts, sends=sends)


def _is(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Flagged:
    """An executor whose tools bear the flags of the settings, so that results are labelled so."""

    def __init__(self, inner: Executor, settings: FlowSettings) -> None:
        self._inner, self._settings = inner, settings
        self._seen: Sequence[Tool] | None = None
        self._tools = Toolset()

    def tools(self) -> Sequence[Tool]:
        """The same tools, flagged anew; the same object while nothing changed."""
        inner = self._inner.tools()
        if inner is not self._seen:
            flagged = [reflagged(tool, self._settings) for tool in inner]
            self._tools = Toolset(flagged, like=inner)
            self._seen = inner
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on."""
        return await self._inner.execute(call, progress)
