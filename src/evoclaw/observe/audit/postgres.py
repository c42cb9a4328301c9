"""A cold tier in PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from evoclaw.core.errors import ConfigError
from evoclaw.observe.audit.cold import Value
from evoclaw.observe.audit.settings import AuditError

SECONDS = 30
"""For one statement, and for a connection."""


class PostgresDatabase:
    """One connection, made when first used, and again after it broke."""

    def __init__(self, url: str, password: str = "") -> None:
        parts = urlsplit(url)
        if parts.password:
            raise ConfigError(
                "the cold tier's address may hold no password: set EVOCLAW_AUDIT_TOKEN, or name a "
                "file with cold_token_file in [audit]"
            )
        self._url, self._password = url, password
        self.name = f"postgresql://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"
        """Which one it is."""
        self._opened: Any = None

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        """Run one statement."""
        psycopg = _psycopg()
        try:
            if self._opened is None or self._opened.closed:
                self._opened = await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=SECONDS,
                    options=f"-c statement_timeout={SECONDS * 1000}",
                    **({"password": self._password} if self._password else {}),
                )
            cursor = await self._opened.execute(sql.replace("?", "%s"), values)
            return await cursor.fetchall() if cursor.description else []
        except (psycopg.Error, OSError) as problem:
            await self.close()
            raise AuditError(f"{self.name} cannot be used: {problem}") from None

    async def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ImportError:
        raise ConfigError(
            "a cold tier in PostgreSQL needs psycopg: pip install 'psycopg[binary]'"
        ) from None
