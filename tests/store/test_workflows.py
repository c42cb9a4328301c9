"""Where workflows are kept: held by one process at a time, seen by one tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from evoclaw.store.databases.database import Database
from evoclaw.store.workflows.workflows import (
    SCHEMA,
    LeaseLost,
    NewWorkflow,
    StoredSchedule,
    WorkflowStore,
    WorkflowUpdate,
)
from tests.support.databases import Place

RUNNING = WorkflowUpdate("running")


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(place: Place) -> AsyncIterator[Database]:
    database = await place.open(SCHEMA)
    yield database
    await database.close()


@pytest.fixture
def store(database: Database, clock: Clock) -> WorkflowStore:
    return WorkflowStore(database, clock)


def new(id_: str, key: str | None = None, parent: str = "") -> NewWorkflow:
    return NewWorkflow(id_, "flow", "digest", b"plan", b"started", parent, key)


async def test_a_workflow_is_stored_with_its_first_event(store: WorkflowStore) -> None:
    row, fresh = await store.create(new("a"))
    again, second = await store.create(new("a"))

    assert fresh and not second and row == again
    assert (row.state, row.head, row.plan, row.started_at) == ("queued", 1, b"plan", 1_000.0)
    assert [(one.seq, one.event) for one in await store.events("a")] == [(1, b"started")]


async def test_concurrent_starts_with_one_key_create_one_workflow(
    store: WorkflowStore, place: Place, clock: Clock
) -> None:
    other = await place.open(SCHEMA)
    stores = [store, WorkflowStore(other, clock)]
    try:
        begun = await asyncio.gather(
            *(stores[number % 2].create(new(f"w{number}", "key")) for number in range(10))
        )
    finally:
        await other.close()

    assert len({row.id for row, _ in begun}) == 1 == sum(fresh for _, fresh in begun)
    assert len(await store.list()) == 1


async def test_a_due_workflow_is_claimed_by_one_process(
    store: WorkflowStore, place: Place, clock: Clock
) -> None:
    for number in range(6):
        await store.create(new(f"w{number}"))
    other = await place.open(SCHEMA)
    try:
        both = await asyncio.gather(
            store.claim("one", 10, 4), WorkflowStore(other, clock).claim("two", 10, 4)
        )
        rest = await store.claim("three", 10, 9)
    finally:
        await other.close()

    held = [row.id for rows in (*both, rest) for row in rows]
    assert sorted(held) == [f"w{number}" for number in range(6)]


async def test_a_workflow_of_a_dead_process_is_claimable_after_its_lease(
    store: WorkflowStore, clock: Clock
) -> None:
    await store.create(new("a"))
    await store.claim("dead", 10, 9)
    clock.now += 9
    assert not await store.claim("next", 10, 9) and await store.next_due() == 1_010
    clock.now += 1
    assert [row.id for row in await store.claim("next", 10, 9)] == ["a"]
    with pytest.raises(LeaseLost):
        await store.append("a", "dead", 1, [b"late"], RUNNING)
    with pytest.raises(LeaseLost):
        await store.release("a", "dead", (1, 0), RUNNING, None)

    assert len(await store.events("a")) == 1


async def test_a_renewed_lease_keeps_its_workflow(store: WorkflowStore, clock: Clock) -> None:
    await store.create(new("a"))
    await store.create(new("b"))
    await store.claim("one", 10, 9)
    clock.now += 9
    held = await store.renew("one", 10, [("local", "a")])
    clock.now += 5

    assert held == {("local", "a"): (1, 0), ("local", "b"): (1, 0)}
    assert [row.id for row in await store.claim("two", 10, 9)] == ["b"]
    await store.release_all("one")
    assert [row.id for row in await store.claim("two", 10, 9)] == ["a"]


async def test_events_are_appended_only_at_the_expected_position(
    store: WorkflowStore,
) -> None:
    await store.create(new("a"))
    await store.claim("one", 10, 9)

    assert await store.append("a", "one", 1, [b"2", b"3"], RUNNING) == 1_000.0
    assert await store.add_event("a", 3, b"from outside")
    assert await store.append("a", "one", 3, [b"lost"], RUNNING) is None
    assert not await store.add_event("a", 3, b"lost too")
    assert await store.append("a", "one", 4, [b"5"], RUNNING)
    events = await store.events("a", 1)
    assert [(one.seq, one.event) for one in events] == [
        (2, b"2"), (3, b"3"), (4, b"from outside"), (5, b"5"),
    ]  # fmt: skip


async def test_a_waiting_workflow_is_due_at_its_time_or_when_woken(
    store: WorkflowStore, clock: Clock
) -> None:
    for id_, due in (("timed", 1_500.0), ("asked", None)):
        await store.create(new(id_))
        await store.claim("one", 10, 9)
        assert await store.release(id_, "one", (1, 0), WorkflowUpdate("waiting"), due)
    assert not await store.claim("one", 10, 9) and await store.next_due() == 1_500
    clock.now = 1_500
    assert [row.id for row in await store.claim("one", 10, 9)] == ["timed"]
    assert await store.wake("asked") and not await store.wake("nobody")
    assert [row.id for row in await store.claim("one", 10, 9)] == ["asked"]


async def test_a_wake_before_release_is_not_lost(store: WorkflowStore) -> None:
    await store.create(new("a"))
    await store.claim("one", 10, 9)
    await store.wake("a")

    assert not await store.release("a", "one", (1, 0), WorkflowUpdate("waiting"), None)
    assert await store.release("a", "one", (1, 1), WorkflowUpdate("waiting"), None)


async def test_the_end_of_a_child_workflow_is_stored_and_wakes_its_parent(
    store: WorkflowStore,
) -> None:
    await store.create(new("parent"))
    await store.claim("one", 10, 9)
    await store.release("parent", "one", (1, 0), WorkflowUpdate("waiting"), None)
    await store.create(new("child", parent="parent"))
    await store.claim("one", 10, 9)
    await store.append("child", "one", 1, [b"end"], WorkflowUpdate("succeeded", b"outcome"))
    row = await store.get("child")

    assert row is not None and row.outcome == b"outcome" and row.ended_at == 1_000.0
    assert [row.id for row in await store.claim("one", 10, 9)] == ["parent"]
    assert not await store.add_event("child", 2, b"too late") and not await store.wake("child")


async def finish(store: WorkflowStore, id_: str, parent: str = "", *, events: int = 1) -> None:
    """A workflow run that ends now, with so many events after its first."""
    await store.create(new(id_, parent=parent))
    await store.claim("one", 10, 1_000)
    ends = [b"end"] * events
    assert await store.append(id_, "one", 1, ends, WorkflowUpdate("succeeded", b"outcome"))


async def test_old_workflow_runs_are_deleted_with_their_events_in_batches(
    store: WorkflowStore, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.store.workflows.workflows.PRUNE_BATCH_RUNS", 3)
    monkeypatch.setattr("evoclaw.store.workflows.workflows.PRUNE_BATCH_EVENTS", 10)
    for number in range(7):
        await finish(store, f"w{number}")
    await finish(store, "long", events=20)
    await finish(store.of("other"), "w0")
    await store.create(new("open"))
    clock.now += 100
    await finish(store, "young")

    before = database.commits
    assert await store.prune(clock.now) == 9
    assert database.commits - before >= 4
    assert {row.id for row in await store.list()} == {"open", "young"}
    assert not await store.events("w0") and not await store.events("long")
    assert not await store.of("other").list() and not await store.of("other").events("w0")
    assert len(await store.events("young")) == 2 and len(await store.events("open")) == 1
    assert await store.prune(clock.now) == 0


async def test_what_an_open_workflow_started_is_kept_with_all_below_it(
    store: WorkflowStore, clock: Clock
) -> None:
    await store.create(new("lead"))
    await finish(store, "child", "lead")
    await finish(store, "grandchild", "child")
    clock.now += 100
    assert await store.prune(clock.now) == 0

    await store.claim("one", 10, 9)
    await store.append("lead", "one", 1, [b"end"], WorkflowUpdate("succeeded", b"outcome"))
    assert await store.prune(clock.now) == 0
    assert await store.prune(clock.now + 1) == 3
    assert await store.list() == []


async def test_workflow_runs_of_the_first_version_are_migrated_and_deleted(
    place: Place, clock: Clock
) -> None:
    older = msgspec.structs.replace(SCHEMA, migrations=SCHEMA.migrations[:1])
    database = await place.open(older)
    await finish(WorkflowStore(database, clock), "old")
    await database.close()
    database = await place.open(SCHEMA)
    assert await WorkflowStore(database, clock).prune(clock.now + 1) == 1
    await database.close()


async def test_tenants_do_not_see_each_others_workflows(store: WorkflowStore) -> None:
    other = store.of("other")
    await store.create(new("a", "key"))
    row, fresh = await other.create(new("a", "key"))

    assert fresh and row.tenant == "other"
    assert not await store.add_event("b", 1, b"x") and await other.add_event("a", 1, b"mine")
    assert len(await store.events("a")) == 1 and len(await other.events("a")) == 2
    assert [len(await one.list()) for one in (store, other, store.of("third"))] == [1, 1, 0]
    claimed = await store.claim("one", 10, 9)
    assert {row.tenant for row in claimed} == {"local", "other"}


async def test_workflow_lists_can_be_filtered_and_paged(store: WorkflowStore) -> None:
    for number in range(5):
        await store.create(new(f"w{number}"))
    await store.claim("one", 10, 1)
    await store.append("w0", "one", 1, [b"x"], RUNNING)

    assert [row.id for row in await store.list(limit=2)] == ["w4", "w3"]
    assert [row.id for row in await store.list(before="w3", limit=2)] == ["w2", "w1"]
    assert [row.id for row in await store.list(state="running")] == ["w0"]
    assert await store.list(name="other") == [] and await store.list(before="nobody") == []


async def test_a_schedule_fires_once_for_all_processes(
    store: WorkflowStore, place: Place, clock: Clock
) -> None:
    planned = await store.put_schedule("flow", "rule", 1_000.0)
    assert planned == await store.put_schedule("flow", "rule", 5_000.0)
    other = await place.open(SCHEMA)
    try:
        fired = await asyncio.gather(
            *(
                one.start_scheduled(
                    planned, 2_000.0, new(f"w{number}", f"schedule:flow:{number}"), overlap=True
                )
                for number, one in enumerate([store, WorkflowStore(other, clock)] * 3)
            )
        )
    finally:
        await other.close()

    assert sum(fired) == 1 == len(await store.list())
    assert await store.schedule("flow") == StoredSchedule("flow", "rule", 2_000.0, 1_000.0)
    assert (await store.put_schedule("flow", "other rule", 7.0)).next_at == 7.0
    await store.delete_schedule("flow")
    assert await store.schedule("flow") is None
