"""From the word in the settings to a cold tier."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evoclaw.core.errors import ConfigError
from evoclaw.observe.audit.cold import Cold, SqlCold
from evoclaw.observe.audit.settings import AuditSettings

TOKEN = "EVOCLAW_AUDIT_TOKEN"


def open_cold(data: Path, settings: AuditSettings, env: Mapping[str, str]) -> Cold | None:
    """The cold tier that the settings name; None if they say `none`. Nothing is connected yet."""
    kind, _, rest = settings.cold.partition(":")
    match kind:
        case "none" if not rest:
            return None
        case "sqlite":
            from evoclaw.observe.audit.sqlite import SqliteDatabase

            return SqlCold(SqliteDatabase(data / (rest or "audit/cold.sqlite")))
        case "libsql" | "http" | "https":
            from evoclaw.observe.audit.libsql import LibsqlDatabase

            return SqlCold(LibsqlDatabase(settings.cold, _token(settings, env)))
        case "postgresql" | "postgres":
            from evoclaw.observe.audit.postgres import PostgresDatabase

            return SqlCold(PostgresDatabase(settings.cold, _token(settings, env)))
        case _:
            raise ConfigError(
                f"cold = {settings.cold[:40]!r} in [audit] is not known; say sqlite, sqlite:FILE, "
                "libsql://…, http://…, postgresql://… or none"
            )


def _token(settings: AuditSettings, env: Mapping[str, str]) -> str:
    if not settings.cold_token_file:
        return env.get(TOKEN, "")
    try:
        return Path(settings.cold_token_file).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read cold_token_file in [audit]: {problem}") from None
