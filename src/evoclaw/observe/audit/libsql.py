"""A cold tier in libSQL or Turso, over their HTTP pipeline."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.observe.audit.cold import Value
from evoclaw.observe.audit.settings import AuditError

if TYPE_CHECKING:
    from aiohttp import ClientSession

SECONDS = 30.0
"""For one statement."""
LARGEST = 64 << 20
"""Bytes of an answer."""


class LibsqlDatabase:
    """A server that speaks the pipeline protocol; one request a statement."""

    def __init__(self, url: str, token: str = "", *, seconds: float = SECONDS) -> None:
        parts = urlsplit(url)
        scheme = {"libsql": "https", "https": "https", "http": "http"}.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise ConfigError(f"{parts.scheme}://{parts.hostname or ''} is no libSQL server")
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                "the cold tier's address may hold no secret: set EVOCLAW_AUDIT_TOKEN, or name a "
                "file with cold_token_file in [audit]"
            )
        place = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self.name = f"libsql://{place}"
        """Which one it is."""
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
            said = error.get("message") if is_object(error) else "it gave no answer"
            raise AuditError(f"{self.name} refused a statement: {said}")
        try:
            rows = first["response"]["result"]["rows"]
            return [tuple(_from_wire(value) for value in row) for row in rows]
        except (KeyError, TypeError, ValueError):
            raise AuditError(f"{self.name} gave an answer that cannot be read") from None

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
                data = await response.content.read(LARGEST + 1)
                while len(data) <= LARGEST and (more := await response.content.read(LARGEST)):
                    data += more
                status = response.status
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as problem:
            raise AuditError(
                f"{self.name} cannot be reached: {problem or type(problem).__name__}"
            ) from None
        if status != 200 or len(data) > LARGEST:
            said = data[:200].decode(errors="replace")
            raise AuditError(f"{self.name} answered {status}: {said}")
        try:
            answer: JSON = json.loads(data)
        except ValueError:
            answer = None
        if not is_object(answer):
            raise AuditError(f"{self.name} gave an answer that cannot be read")
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
