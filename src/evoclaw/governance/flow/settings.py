"""The settings of the information flow policy: how strict it is, and the flags of tools."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

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
    """Every acting call needs approval once the model has read untrusted text."""
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


DEFAULT = FlowSettings()
