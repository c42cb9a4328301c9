"""The settings of the store: its location and retention."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class StoreSettings(Struct, frozen=True, kw_only=True):
    """The table `[store]`."""

    url: str = ""
    """A PostgreSQL URL, such as `postgresql://user@host:5432/database`, without a password; empty
    is a SQLite file in the data folder. Several orchestrators may share a PostgreSQL."""
    schema: Annotated[str, Meta(pattern="^[a-z_][a-z0-9_]{0,62}$")] = "evoclaw"
    """The PostgreSQL schema for all tables; created if it is missing."""
    password_file: str = ""
    """A file with the PostgreSQL password; without, `EVOCLAW_STORE_PASSWORD`."""
    key_file: str = ""
    """The key that encrypts what runs hold; created if it is missing. Empty:
    `~/.config/evoclaw/records.key` for a SQLite file in `~/.evoclaw`, otherwise no encryption."""
    keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    """Days that a session is kept after its last run ended, and a workflow run and a receipt after
    its end; 0: forever. A session with a run that has not ended, or waits for a person, is never
    deleted, nor is a workflow run that was started by one that has not ended."""
    undo_hours: Annotated[int, Meta(ge=0, le=8760)] = 168
    """How long the content of files that `evoclaw run` changed is kept, on this machine or over
    SSH, so that `evoclaw undo` can restore it; 0: not at all."""
    undo_bytes: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000_000
    """The largest file whose content is kept for `evoclaw undo`."""
