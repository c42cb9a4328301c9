"""What users said of runs, kept where several orchestrators see it."""

from __future__ import annotations

import pytest

from evoclaw.store.sessions.ratings import SCHEMA, RatingStore
from tests.support.databases import Place


async def test_a_rating_is_replaced_forgotten_with_its_session_and_kept_from_other_tenants(
    place: Place,
) -> None:
    one, two = await place.open(SCHEMA), await place.open(SCHEMA)
    try:
        ours, theirs = RatingStore(one), RatingStore(two)
        await ours.put("local", "s", "r1", b"first")
        await theirs.put("local", "s", "r1", b"second")
        await ours.put("local", "other", "r2", b"stays")
        assert await ours.get("local", "r1") == b"second"
        assert await ours.get("other", "r1") is None
        await theirs.forget("other", "s")
        assert await ours.get("local", "r1") == b"second"
        await theirs.forget("local", "s")
        assert await ours.get("local", "r1") is None
        assert await ours.get("local", "r2") == b"stays"
    finally:
        await one.close()
        await two.close()


async def test_the_ratings_of_many_runs_are_read_together(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.store.databases.database.MAX_IDS", 2)
    database = await place.open(SCHEMA)
    try:
        ratings = RatingStore(database)
        for run in ("r1", "r3", "r5"):
            await ratings.put("local", "s", run, run.encode())
        await ratings.put("other", "s", "r2", b"theirs")
        found = await ratings.of_runs("local", [f"r{number}" for number in range(1, 6)])
        assert found == {"r1": b"r1", "r3": b"r3", "r5": b"r5"}
        assert await ratings.of_runs("local", []) == {}
    finally:
        await database.close()
