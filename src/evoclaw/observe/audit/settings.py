"""What can be chosen about the audit."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import EvoClawError


class AuditSettings(Struct, frozen=True, kw_only=True):
    """The table `[audit]`."""

    enabled: bool = True
    """Whether anything is written down."""
    days: Annotated[int, Meta(ge=1, le=3650)] = 7
    """That the warm files are kept at least; longer if they are not safely in the cold tier."""
    hot: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Records kept in memory."""
    cold: str = "sqlite"
    """`sqlite` (beside the warm files), `sqlite:FILE`, `libsql://…`, `http(s)://…` (a libSQL
    server), `postgresql://…`, or `none`: then warm files are never deleted."""
    cold_token_file: str = ""
    """Holds the libSQL server's token; else `EVOCLAW_AUDIT_TOKEN`."""
    checkpoint_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Records between two signed checkpoints."""
    ship_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 60.0
    """Between two deliveries to the cold tier."""
    spool_bytes: Annotated[int, Meta(ge=65_536)] = 1 << 30
    """Of warm files that the cold tier does not have yet."""
    when_full: Literal["refuse", "drop"] = "refuse"
    """With the spool full: `refuse` lets no call begin that could not be recorded; `drop` deletes
    the oldest day unshipped, and says so in the chain."""
    parameter_chars: Annotated[int, Meta(ge=16, le=1_000_000)] = 2000
    """Letters that are kept of each text among a call's parameters."""


DEFAULT_SETTINGS = AuditSettings()
"""What holds when nothing was said."""


class AuditError(EvoClawError):
    """The audit cannot be written, read or delivered."""
