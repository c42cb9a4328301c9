"""How strict the rule about information flow is, and what integrators say of their tools."""

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
"""What parameters are usually called whose words people read and no machine acts on."""


class Preset(StrEnum):
    """The rules there are."""

    STRICT = "strict"
    """Nothing acts by itself once something untrusted was read."""
    GROUNDED = "grounded"
    """It acts if the user asked for that action and the values are the user's own."""
    RULE_OF_TWO = "rule_of_two"
    """Untrusted input, private data, acting: two of the three are free, the third is asked for."""
    OFF = "off"


class EdgeRule(StrEnum):
    """What an edge does with an acting call that was asked for in an untrusted context."""

    GRANTED = "granted"
    """Run it: whoever sent it has seen the whole context and has judged it."""
    STRICT = "strict"
    """Refuse it, whoever sent it."""


class FlowSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The `[flow]` table. Names of tools may hold `*`, as in `mail__*`."""

    preset: Preset = Preset.GROUNDED
    trusted: tuple[str, ...] = ()
    """Tools whose results only hold what the operator vouches for, whatever they are flagged."""
    outside: tuple[str, ...] = ()
    """Tools whose results hold what outsiders may have written."""
    private: tuple[str, ...] = ()
    """Tools whose results are not for everybody."""
    acts: tuple[str, ...] = ()
    """Tools that change or tell something beyond the conversation."""
    sends: tuple[str, ...] = ()
    """Tools whose arguments leave for a place that outsiders may read."""
    harmless: tuple[str, ...] = ()
    """Tools that neither act nor send, whatever they are flagged."""
    prose: tuple[str, ...] = PROSE
    """Parameters whose words people read: the model may word them for whom the user named."""
    words: dict[str, tuple[str, ...]] = {}
    """Per tool, further words by which a user asks for it: `send_money = ["settle"]`."""
    edge: EdgeRule = EdgeRule.GRANTED


DEFAULT = FlowSettings()
