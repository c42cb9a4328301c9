"""The flags of tools for information flow, as the settings change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from msgspec.structs import replace

from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.governance.flow.settings import FlowSettings


def with_configured_flags(tool: Tool, settings: FlowSettings) -> Tool:
    """The tool with the flags that the settings give it; the same object if they give none."""
    if not (
        settings.trusted or settings.outside or settings.private or settings.acts
        or settings.sends or settings.harmless
    ):  # fmt: skip
        return tool
    name = tool.name
    outside = (tool.outside or _matches_any(name, settings.outside)) and not _matches_any(
        name, settings.trusted
    )
    private = tool.private or _matches_any(name, settings.private)
    harmless = _matches_any(name, settings.harmless)
    acts = False if harmless else True if _matches_any(name, settings.acts) else tool.acts
    sends = (tool.sends or _matches_any(name, settings.sends)) and not harmless
    if (outside, private, acts, sends) == (tool.outside, tool.private, tool.acts, tool.sends):
        return tool
    return replace(tool, outside=outside, private=private, acts=acts, sends=sends)


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class FlowFlags(OfferStep):
    """Sets the flags that the settings give a tool: outside, private, acts, sends."""

    settings: FlowSettings

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The same tools with their flags."""
        return [with_configured_flags(tool, self.settings) for tool in tools]
