"""What can be chosen about the rules."""

from __future__ import annotations

from msgspec import Struct


class PolicySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[policy]`."""

    rules: str = ""
    """A file of rules, from the data folder on if it is not absolute; empty: those we ship."""
    off: dict[str, str] = {}
    """Tools that are switched off, by name or with `*`, and why."""
