"""The store of roll-outs: one owner writes, and order numbers only grow."""

from __future__ import annotations

import pytest

from evoclaw.store.genome_rollouts import (
    SCHEMA,
    RolloutLeaseLost,
    RolloutStore,
    RolloutWrites,
    StoredRollout,
    StoredRolloutEdge,
)
from tests.support.databases import Place


def added(number: int, *, is_open: bool = True) -> StoredRollout:
    return StoredRollout(f"r{number}", float(number), is_open, f"roll-out {number}".encode())


async def test_roll_outs_and_their_edges_are_stored_and_changed(place: Place) -> None:
    database = await place.open(SCHEMA)
    try:
        store = RolloutStore(database)

        def start(writes: RolloutWrites) -> None:
            for number in (1, 2):
                writes.add(added(number))
            writes.add(added(1, is_open=False))  # the first one stays
            writes.put_edges([StoredRolloutEdge("r1", name, b"new") for name in ("b", "a")])

        await store.write(start)
        assert await store.open_rollouts() == [b"roll-out 1", b"roll-out 2"]
        assert await store.newest(1) == [b"roll-out 2"]
        assert await store.claim("one", 60)

        def change(writes: RolloutWrites) -> None:
            assert (writes.find("r1"), writes.find("r9")) == (b"roll-out 1", None)
            assert writes.newer_than(1.0) == ["r2"]
            assert writes.open_rollouts() == [b"roll-out 1", b"roll-out 2"]
            writes.put(added(1, is_open=False))
            writes.put_edges([StoredRolloutEdge("r1", "b", b"changed")])
            assert writes.edges("r1") == [b"new", b"changed"]

        await store.advance("one", change)
        assert await store.open_rollouts() == [b"roll-out 2"]
        assert await store.edges("r1") == [b"new", b"changed"]
        assert (await store.find("r1"), await store.find("r9")) == (b"roll-out 1", None)
    finally:
        await database.close()


async def test_a_former_owner_can_write_no_progress(place: Place) -> None:
    now = [1_000.0]
    database = await place.open(SCHEMA)
    try:
        store = RolloutStore(database, lambda: now[0])
        assert await store.claim("one", 60)
        assert not await store.claim("two", 60)
        first = await store.advance("one", lambda writes: None)
        now[0] += 61
        with pytest.raises(RolloutLeaseLost):
            await store.advance("one", lambda writes: None)
        assert await store.claim("two", 60)
        with pytest.raises(RolloutLeaseLost):
            await store.advance("one", lambda writes: None)
        second = await store.advance("two", lambda writes: None)
        now[0] -= 30  # another clock
        assert first < second < await store.advance("two", lambda writes: None)
        assert await store.claim("three", 60, alone=True)
        await store.release("three")
        assert await store.claim("one", 60)
    finally:
        await database.close()
