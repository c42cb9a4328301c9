"""Tokens, kept in either database."""

from __future__ import annotations

from msgspec.structs import replace

from evoclaw.store.governance.tokens import SCHEMA, StoredToken, TokenStore
from tests.support.databases import Place

TOKEN = StoredToken("a1", "acme", "ci", "ann", frozenset({"runs:read", "human"}), "00ff", 1.5)


async def test_a_token_is_found_by_its_id_and_listed_for_its_tenant(place: Place) -> None:
    database = await place.open(SCHEMA)
    try:
        store = TokenStore(database, lambda: 100.0)
        later = replace(TOKEN, id="a2", made_at=2.5, expires_at=99.0)
        await store.put(TOKEN)
        await store.put(later)
        await store.put(replace(TOKEN, id="b1", tenant="other"))
        assert await store.get("a1") == TOKEN
        assert await store.get("a") is None
        assert await store.list("acme") == [later, TOKEN]
        assert TOKEN.is_valid(100.0)
        assert not later.is_valid(100.0)
    finally:
        await database.close()


async def test_a_token_is_revoked_once_and_only_by_its_tenant(place: Place) -> None:
    now = [100.0]
    database = await place.open(SCHEMA)
    try:
        store = TokenStore(database, lambda: now[0])
        await store.put(TOKEN)
        await store.mark_used("a1")
        assert not await store.revoke("a1", "other")
        assert await store.revoke("a1", "acme")
        now[0] = 200.0
        assert await store.revoke("a1", "acme")
        found = await store.get("a1")
        assert found is not None
        assert (found.used_at, found.revoked_at) == (100.0, 100.0)
        assert not found.is_valid(now[0])
    finally:
        await database.close()
