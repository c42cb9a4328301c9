"""What can be chosen about where things are kept, and for how long."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class StoreSettings(Struct, frozen=True, kw_only=True):
    """The table `[store]`."""

    url: str = ""
    """Of a PostgreSQL, as `postgresql://user@host:5432/database`, without a password; empty is a
    file in the data folder. Several orchestrators may share a PostgreSQL."""
    schema: Annotated[str, Meta(pattern="^[a-z_][a-z0-9_]{0,62}$")] = "evoclaw"
    """The schema of the PostgreSQL that is ours; it is made if it is missing."""
    password_file: str = ""
    """Holds the password for the PostgreSQL; else `EVOCLAW_STORE_PASSWORD`."""
    keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    """Days that a session is kept after the last of its runs ended; 0 is for ever. What goes on,
    or waits for a person, is never forgotten."""
