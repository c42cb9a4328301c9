"""The settings of `[evolution]`."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class EvolutionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How agents are evaluated."""

    cases: Path | None = None
    """The folder of the cases; default: `cases` in the data folder."""
