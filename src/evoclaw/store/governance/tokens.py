"""API tokens: their owner, scopes and hash, never the secret itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.store.databases.database import Connection, Database, Schema

SCHEMA = Schema(
    "tokens",
    (
        (
            """CREATE TABLE tokens (
                id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                name TEXT NOT NULL,
                person TEXT NOT NULL,
                scopes TEXT NOT NULL,
                hash TEXT NOT NULL,
                made_at REAL NOT NULL,
                expires_at REAL,
                used_at REAL,
                revoked_at REAL
            ) STRICT""",
            "CREATE INDEX tokens_of ON tokens (tenant, made_at)",
        ),
    ),
)
TOKEN_CACHE_S = 2.0
"""Seconds for which a process uses a token without reading it again: a token that another process
revokes is valid for that long."""
MAX_CACHED_TOKENS = 10_000
_COLUMNS = "id, tenant, name, person, scopes, hash, made_at, expires_at, used_at, revoked_at"
_SELECT = f"SELECT {_COLUMNS} FROM tokens"


class StoredToken(Struct, frozen=True):
    """A stored token."""

    id: str
    tenant: str
    name: str
    """Describes what it is for."""
    user: str
    scopes: frozenset[str]
    hash: str
    """SHA-256 of the secret, in hexadecimal."""
    made_at: float
    expires_at: float | None = None
    used_at: float | None = None
    """About when it was last used."""
    revoked_at: float | None = None

    def is_valid(self, now: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class TokenStore:
    """The tokens of all tenants."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        self._cache: dict[str, tuple[StoredToken, float]] = {}
        """Valid tokens, and when they were read, by the monotonic clock."""
        self._revocations = 0

    def now(self) -> float:
        """The time by which tokens expire."""
        return self._clock()

    async def put(self, token: StoredToken) -> None:
        """Store a new token."""
        scopes = msgspec.json.encode(sorted(token.scopes)).decode()
        values = (
            token.id, token.tenant, token.name, token.user, scopes, token.hash, token.made_at,
            token.expires_at, token.used_at, token.revoked_at,
        )  # fmt: skip
        statement = f"INSERT INTO tokens ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})"
        await self._database.write(lambda c: c.execute(statement, values))

    async def get(self, id_: str) -> StoredToken | None:
        """A token of any tenant."""

        def work(connection: Connection) -> Any:
            return connection.execute(f"{_SELECT} WHERE id = ?", (id_,)).fetchone()

        row = await self._database.read(work, allow_stale=True)
        return None if row is None else _token(row)

    async def is_revoked(self, token_id: str) -> bool:
        """Whether a stored token was revoked or has expired; False if it is not stored here."""
        found = await self.get_recent(token_id)
        return found is not None and not found.is_valid(self._clock())

    async def get_recent(self, id_: str) -> StoredToken | None:
        """A token of any tenant, as it was at most `TOKEN_CACHE_S` seconds ago.

        What this store itself revoked is seen at once. An unknown token is always looked up.
        """
        found = self._cache.get(id_)
        if found is not None and time.monotonic() < found[1] + TOKEN_CACHE_S:
            return found[0]
        read_at, revocations = time.monotonic(), self._revocations
        token = await self.get(id_)
        if token is None or not token.is_valid(self._clock()):
            self._cache.pop(id_, None)
        elif revocations == self._revocations:
            if len(self._cache) >= MAX_CACHED_TOKENS:
                self._cache.clear()
            self._cache[id_] = token, read_at
        return token

    async def list(self, tenant: str) -> Sequence[StoredToken]:
        """The tokens of a tenant, revoked ones too, newest first."""

        def work(connection: Connection) -> list[Any]:
            statement = f"{_SELECT} WHERE tenant = ? ORDER BY made_at DESC, id"
            return connection.execute(statement, (tenant,)).fetchall()

        return [_token(row) for row in await self._database.read(work, allow_stale=True)]

    async def revoke(self, id_: str, tenant: str) -> bool:
        """Revoke a token; False if the tenant has none with that id."""
        statement = (
            "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? AND tenant = ?"
        )
        values = (self._clock(), id_, tenant)
        try:
            return await self._database.write(lambda c: c.execute(statement, values).rowcount) > 0
        finally:
            self._revocations += 1
            self._cache.pop(id_, None)

    async def mark_used(self, id_: str) -> None:
        """Record that it was used now."""
        now = self._clock()
        if (found := self._cache.get(id_)) is not None:
            self._cache[id_] = replace(found[0], used_at=now), found[1]
        values = (now, id_)
        statement = "UPDATE tokens SET used_at = ? WHERE id = ?"
        await self._database.write(lambda c: c.execute(statement, values))


def _token(row: Sequence[Any]) -> StoredToken:
    id_, tenant, name, user, scopes, hash_, made_at, expires_at, used_at, revoked_at = row
    scopes = msgspec.json.decode(scopes, type=frozenset[str])
    return StoredToken(
        id_, tenant, name, user, scopes, hash_, made_at, expires_at, used_at, revoked_at
    )
