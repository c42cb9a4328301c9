"""The settings of the rules and of switched-off tools."""

from __future__ import annotations

from msgspec import Struct


class PolicySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[policy]`."""

    rules: str = ""
    """A rules file, absolute or relative to the data folder [the shipped rules]."""
    off: dict[str, str] = {}
    """Tools that are switched off, by name or with `*`, each with the reason."""
