"""The settings of the audit."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import EvoClawError


class AuditSettings(Struct, frozen=True, kw_only=True):
    """The table `[audit]`."""

    enabled: bool = True
    """Whether the audit is written."""
    days: Annotated[int, Meta(ge=1, le=3650)] = 7
    """Days that warm files are kept at least; longer until the cold tier has them."""
    cold: str = "sqlite"
    """`sqlite` (beside the warm files), `sqlite:FILE`, `libsql://…`, `http(s)://…` (a libSQL
    server), `postgresql://…`, or `none`: then warm files are never deleted."""
    cold_token_file: str = ""
    """A file with the libSQL server's token; otherwise `EVOCLAW_AUDIT_TOKEN`."""
    checkpoint_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Records between two signed checkpoints."""
    ship_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 60.0
    """Seconds between two deliveries to the cold tier."""
    spool_bytes: Annotated[int, Meta(ge=65_536)] = 1 << 30
    """Limit of warm files that the cold tier does not have yet."""
    when_full: Literal["refuse", "drop"] = "refuse"
    """With the spool full: `refuse` denies calls, because they could not be recorded; `drop`
    deletes the oldest unshipped day, and records that in the chain."""
    parameter_chars: Annotated[int, Meta(ge=16, le=1_000_000)] = 2000
    """Characters that are kept of each text in a call's parameters."""


DEFAULT_SETTINGS = AuditSettings()


class AuditError(EvoClawError):
    """The audit cannot be written, read or delivered."""
