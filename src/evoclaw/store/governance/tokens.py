"""API tokens: their owner, scopes and hash, never the secret itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

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
        return await self._database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def mark_used(self, id_: str) -> None:
        """Record that it was used now."""
        values = (self._clock(), id_)
        statement = "UPDATE tokens SET used_at = ? WHERE id = ?"
        await self._database.write(lambda c: c.execute(statement, values))


def _token(row: Sequence[Any]) -> StoredToken:
    id_, tenant, name, user, scopes, hash_, made_at, expires_at, used_at, revoked_at = row
    scopes = msgspec.json.decode(scopes, type=frozenset[str])
    return StoredToken(
        id_, tenant, name, user, scopes, hash_, made_at, expires_at, used_at, revoked_at
    )
