"""Tokens, kept in either database."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from evoclaw.store.governance.tokens import SCHEMA, TOKEN_CACHE_S, StoredToken, TokenStore
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


async def test_a_recent_token_is_read_once_and_its_revocation_here_counts_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await place.open(SCHEMA)
    try:
        store, elsewhere = TokenStore(database, lambda: 100.0), TokenStore(database)
        now = [0.0]
        monkeypatch.setattr("evoclaw.store.governance.tokens.time.monotonic", lambda: now[0])
        assert await store.get_recent("a1") is None
        await store.put(TOKEN)
        assert await store.get_recent("a1") == TOKEN, "an unknown token is looked up again"
        await store.put(replace(TOKEN, id="a2"))
        assert await store.get_recent("a2") is not None
        assert await elsewhere.revoke("a1", "acme")
        assert await store.revoke("a2", "acme")
        found = await store.get_recent("a2")
        assert found is not None
        assert not found.is_valid(100.0)
        assert await store.get_recent("a1") == TOKEN
        now[0] += TOKEN_CACHE_S
        found = await store.get_recent("a1")
        assert found is not None
        assert not found.is_valid(100.0)
    finally:
        await database.close()


async def test_a_token_that_is_revoked_while_it_is_read_is_not_cached(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await place.open(SCHEMA)
    try:
        store = TokenStore(database, lambda: 100.0)
        await store.put(TOKEN)
        read = store.get

        async def read_late(id_: str) -> StoredToken | None:
            found = await read(id_)
            await store.revoke(id_, "acme")
            return found

        monkeypatch.setattr(store, "get", read_late)
        await store.get_recent("a1")
        monkeypatch.setattr(store, "get", read)
        found = await store.get_recent("a1")
        assert found is not None
        assert found.revoked_at is not None
    finally:
        await database.close()
