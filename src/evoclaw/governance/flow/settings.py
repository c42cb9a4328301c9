"""The settings of the information flow policy: how strict it is, and which flags tools get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool

PROSE = (
    "body",
    "caption",
    "comment",
    "content",
    "description",
    "message",
    "note",
    "notes",
    "subject",
    "summary",
    "text",
    "title",
)
"""Usual names of parameters that people read as text and no program interprets."""


class Preset(StrEnum):
    """How strict the policy is."""

    STRICT = "strict"
    """Every acting call needs approval once the model has read untrusted text; and so does every
    call that `grounded` would ask about."""
    GROUNDED = "grounded"
    """A call may act if the user asked for the action and its values are the user's own."""
    RULE_OF_TWO = "rule_of_two"
    """Untrusted input, private data, acting: two of them are free, the third needs approval."""
    OFF = "off"


class EdgeRule(StrEnum):
    """What an edge does with an acting call from an untrusted context."""

    GRANTED = "granted"
    """Run it: the orchestrator has judged it with the full context."""
    STRICT = "strict"
    """Refuse it, whatever the orchestrator decided."""


class FlowSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The `[flow]` table. Names of tools may hold `*`, as in `mail__*`."""

    preset: Preset = Preset.GROUNDED
    """How strictly untrusted text is kept from causing actions."""
    trusted: tuple[str, ...] = ()
    """Tools whose results the operator vouches for, whatever their flags."""
    outside: tuple[str, ...] = ()
    """Tools whose results may contain text that outsiders wrote."""
    private: tuple[str, ...] = ()
    """Tools whose results are private."""
    acts: tuple[str, ...] = ()
    """Tools that change or send something outside the conversation."""
    sends: tuple[str, ...] = ()
    """Tools that send their arguments to where outsiders may read them."""
    harmless: tuple[str, ...] = ()
    """Tools that neither act nor send, whatever their flags."""
    prose: tuple[str, ...] = PROSE
    """Parameters that people read as text: the model may word them once the user named the
    recipient."""
    words: dict[str, tuple[str, ...]] = {}
    """Further words by which users ask for a tool, by tool: `send_money = ["settle"]`."""
    edge: EdgeRule = EdgeRule.GRANTED
    """What an edge does with a call that untrusted text may have caused."""


DEFAULT = FlowSettings()


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
