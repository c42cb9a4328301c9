"""The databases that a cold tier can be in: an SQLite file, a libSQL server or PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.observe.audit.settings import AuditError

if TYPE_CHECKING:
    from aiohttp import ClientSession

Value: TypeAlias = str | int | float | None
SQLITE_LOCK_TIMEOUT_S = 10.0
"""For another process that holds the file."""
LIBSQL_TIMEOUT_S = 30.0
"""For one statement."""
MAX_RESPONSE_BYTES = 64 << 20
"""Of one response."""
POSTGRES_TIMEOUT_S = 30
"""For one statement, and for a connection."""


class ColdDatabase(Protocol):
    """Runs single statements; raises `AuditError` if that fails."""

    @property
    def name(self) -> str:
        """Which database it is, without secrets."""
        ...

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        """Run a statement with `?` for each value; it is committed when this returns."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class SqliteColdDatabase:
    """An SQLite file on this machine, opened on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._serial = asyncio.Lock()
        self._lock = threading.Lock()
        """A statement continues in its thread when the caller is cancelled."""

    @property
    def name(self) -> str:
        """Which database it is, without secrets."""
        return f"sqlite:{self._path}"

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        """Run one statement in a thread."""
        async with self._serial:
            return await asyncio.to_thread(self._run, sql, values)

    async def close(self) -> None:
        """Close the file."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _run(self, sql: str, values: tuple[Value, ...]) -> list[tuple[Value, ...]]:
        try:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open()
                return self._opened.execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as problem:
            raise AuditError(f"the cold tier {self._path} cannot be used: {problem}") from None

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # A batch of each size is a statement of its own, and a cached statement keeps its values:
        # megabytes, for something that is done rarely.
        opened = sqlite3.connect(
            self._path,
            timeout=SQLITE_LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=0,
        )
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = FULL")
        return opened


class LibsqlColdDatabase:
    """A libSQL or Turso server, over its HTTP pipeline; one request per statement."""

    def __init__(self, url: str, token: str = "", *, seconds: float = LIBSQL_TIMEOUT_S) -> None:
        parts = urlsplit(url)
        scheme = {"libsql": "https", "https": "https", "http": "http"}.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise ConfigError(
                f"{parts.scheme}://{parts.hostname or ''} is not the address of a libSQL server"
            )
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                "the cold tier's address may not contain a secret: set EVOCLAW_AUDIT_TOKEN, or a "
                "file with cold_token_file in [audit]"
            )
        place = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self.name = f"libsql://{place}"
        """Which database it is, without secrets."""
        self._url = f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/v2/pipeline"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._seconds = seconds
        self._session: ClientSession | None = None

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        """Run one statement."""
        statement = {"sql": sql, "args": [_to_wire(value) for value in values]}
        answer = await self._post(
            {"requests": [{"type": "execute", "stmt": statement}, {"type": "close"}]}
        )
        results = answer.get("results")
        first: JSON = results[0] if is_array(results) and results else None
        if not is_object(first) or first.get("type") != "ok":
            error: JSON = first.get("error") if is_object(first) else None
            message = error.get("message") if is_object(error) else "empty response"
            raise AuditError(f"{self.name} refused a statement: {message}")
        try:
            rows = first["response"]["result"]["rows"]
            return [tuple(_from_wire(value) for value in row) for row in rows]
        except (KeyError, TypeError, ValueError):
            raise AuditError(f"{self.name} sent an unreadable response") from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, body: JSON) -> dict[str, JSON]:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        try:
            posted = self._session.post(self._url, json=body, allow_redirects=False)
            async with posted as response:
                data = await response.content.read(MAX_RESPONSE_BYTES + 1)
                while len(data) <= MAX_RESPONSE_BYTES and (
                    more := await response.content.read(MAX_RESPONSE_BYTES)
                ):
                    data += more
                status = response.status
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as problem:
            raise AuditError(
                f"{self.name} cannot be reached: {problem or type(problem).__name__}"
            ) from None
        if status != 200 or len(data) > MAX_RESPONSE_BYTES:
            text = data[:200].decode(errors="replace")
            raise AuditError(f"{self.name} answered {status}: {text}")
        try:
            answer: JSON = json.loads(data)
        except ValueError:
            answer = None
        if not is_object(answer):
            raise AuditError(f"{self.name} sent an unreadable response")
        return answer


def _to_wire(value: Value) -> dict[str, JSON]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, int):
        return {"type": "integer", "value": str(value)}
    if isinstance(value, float):
        return {"type": "float", "value": value}
    return {"type": "text", "value": value}


def _from_wire(value: JSON) -> Value:
    match value["type"]:
        case "null":
            return None
        case "integer":
            return int(value["value"])
        case "float":
            return float(value["value"])
        case _:
            return str(value["value"])


class PostgresColdDatabase:
    """PostgreSQL, over one connection that is opened on first use and after it broke."""

    def __init__(self, url: str, password: str = "") -> None:
        parts = urlsplit(url)
        if parts.password:
            raise ConfigError(
                "the cold tier's address may not contain a password: set EVOCLAW_AUDIT_TOKEN, or a "
                "file with cold_token_file in [audit]"
            )
        self._url, self._password = url, password
        self.name = f"postgresql://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"
        """Which database it is, without secrets."""
        self._opened: Any = None

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        """Run one statement."""
        psycopg = _psycopg()
        try:
            if self._opened is None or self._opened.closed:
                self._opened = await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=POSTGRES_TIMEOUT_S,
                    options=f"-c statement_timeout={POSTGRES_TIMEOUT_S * 1000}",
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
