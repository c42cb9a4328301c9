"""What is long over is forgotten; what goes on is not."""

from __future__ import annotations

from pathlib import Path
from time import time as now
from typing import cast

import pytest
from bench.growth.measure import steps_of

from evoclaw.core.events import Record, Replied, StopReason
from evoclaw.core.messages import Reply, user
from evoclaw.orchestrator.sessions.retention import SessionRetention
from evoclaw.store.calls.receipts import PRUNE_BATCH_ROWS, ReceiptStore, StoredReceipt
from evoclaw.store.calls.receipts import SCHEMA as receipt_tables
from evoclaw.store.databases.change_detection import run_status_rows
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.governance import approvals
from evoclaw.store.runs import queue
from evoclaw.store.runs.queue import RunQueue
from evoclaw.store.sessions import changes, delete_steps, expired_sessions
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.canvases import StoredCanvases
from evoclaw.store.sessions.expired_sessions import BATCH_ROWS, ExpiredSessions
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore, StoredRun
from evoclaw.store.workflows.workflows import SCHEMA as workflow_tables
from tests.support.databases import Place
from tests.support.waiting import until

OLD, NEW, BEFORE = 100.0, 1000.0, 500.0
DONE = StopReason.COMPLETED


async def test_only_sessions_that_ended_before_the_cutoff_are_deleted(place: Place) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    time = [OLD]
    store = SessionStore(database, lambda: time[0])

    async def talk(
        session: str, run: str, at: float, stop: StopReason | None, *, root: str = ""
    ) -> None:
        time[0] = at
        await store.create(Session(session, "a"))
        begun = await store.create_run(run, session, "hi", root_run=root)
        record = Record(run, 1, at, Replied(Reply("yes")))
        await store.append(begun, [record], [(0, user("hi"))], RunUsage(), stop)
        await store.put_todos(session, b"[]")

    done, waits = StopReason.COMPLETED, StopReason.WAITING
    await talk("over", "r1", OLD, done)
    await talk("goes on", "r2", OLD, None)
    await talk("waits", "r3", OLD, waits)
    await talk("again", "r4", OLD, done)
    await talk("again", "r5", NEW, done)
    await talk("below", "r6", OLD, done, root="r2")
    time[0] = OLD
    await store.create(Session("never used", "a"))
    other = SessionStore(database, lambda: OLD, "other")
    await other.create(Session("over", "a"))
    for number in range(120):
        await talk(f"many {number}", f"m{number}", OLD, done)
    time[0] = NEW
    await store.create(Session("new", "a"))

    assert await ExpiredSessions(database).delete(BEFORE) == 123
    left = {one.session.id for one in await store.sessions("")}
    assert left == {"goes on", "waits", "again", "below", "new"}
    assert await other.sessions("") == []
    assert await store.records("r1") == [] and await store.messages("over") == []
    assert await store.run("r1") is None and await store.todos("over") is None
    for run in ("r2", "r3", "r4", "r5", "r6"):
        assert len(await store.records(run)) == 1
    assert await ExpiredSessions(database).delete(BEFORE) == 0
    await database.close()


class History:
    """Sessions with a run each, at chosen times."""

    def __init__(self, database: Database) -> None:
        self.time = OLD
        self.store = SessionStore(database, lambda: self.time)

    async def talk(
        self, session: str, at: float, stop: StopReason | None = DONE, *, root: str = ""
    ) -> StoredRun:
        """A run of a session, which is created if needed."""
        self.time = at
        await self.store.create(Session(session, "a"))
        run = await self.store.create_run(f"{session} {at}", session, "hi", root_run=root)
        await self.store.append(run, [], [], RunUsage(), stop)
        return run

    async def left(self) -> set[str]:
        """The sessions that are stored."""
        return {one.session.id for one in await self.store.sessions("")}


async def test_a_kept_session_is_deleted_when_the_reason_to_keep_it_ends(place: Place) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    history, expired = History(database), ExpiredSessions(database)
    lead = await history.talk("lead", OLD, None)
    await history.talk("below", OLD, root=lead.id)
    await history.talk("used again", OLD)
    await history.talk("used again", NEW)
    history.time = NEW
    await history.store.create(Session("never used", "a"))
    assert await expired.delete(BEFORE) == 0

    history.time = NEW
    await history.store.append(lead, [], [], RunUsage(), DONE)
    assert await expired.delete(BEFORE) == 1
    assert await history.left() == {"lead", "used again", "never used"}
    await history.talk("used later", NEW + 100)
    assert await expired.delete(NEW + 1) == 3
    assert await history.left() == {"used later"}
    await database.close()


async def test_an_unused_session_between_older_ones_is_deleted_when_it_expires(
    place: Place,
) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    history, expired = History(database), ExpiredSessions(database)
    for name, at in (("first", OLD), ("clock ahead", NEW), ("second", OLD)):
        history.time = at
        await history.store.create(Session(name, "a"))
    assert await expired.delete(BEFORE) == 2
    assert await history.left() == {"clock ahead"}
    assert await expired.delete(NEW + 1) == 1
    await database.close()


async def test_retention_looks_again_at_everything_after_the_clock_was_set_back(
    place: Place,
) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    history, expired = History(database), ExpiredSessions(database)
    assert await expired.delete(NEW) == 0
    await history.talk("over", OLD)
    assert await expired.delete(BEFORE) == 1
    await database.close()


async def test_a_damaged_session_in_use_does_not_stop_retention(place: Place) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    history, expired = History(database), ExpiredSessions(database)
    await history.talk("damaged", OLD)
    await history.talk("damaged", NEW)
    history.time = OLD
    await history.store.create(Session("never used", "a"))
    damage = "UPDATE sessions SET session = ? WHERE id = ?"
    await database.write(lambda c: c.execute(damage, (b"damaged", "damaged")))
    assert await expired.delete(BEFORE) == 1
    assert await history.store.session("never used") is None
    await database.close()


async def test_retention_continues_after_an_interruption(place: Place) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    history, expired = History(database), ExpiredSessions(database)
    for number in range(2 * BATCH_ROWS):
        await history.talk(f"over {number}", OLD)

    async def fail(_tenant: str, _session: str) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await expired.delete(BEFORE, fail)
    assert await expired.delete(BEFORE) == BATCH_ROWS
    assert await history.left() == set()
    await database.close()


LEFT = (
    "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM records), "
    "(SELECT count(*) FROM messages), (SELECT count(*) FROM deleted_sessions)"
)


async def long_session(store: SessionStore, session_id: str = "long", parent: str = "") -> None:
    """A session with seven runs and as many messages."""
    await store.create(Session(session_id, "a", parent=parent))
    for number in range(7):
        run = await store.create_run(f"{session_id}{number}", session_id, "hi")
        record = Record(run.id, 1, OLD, Replied(Reply("yes")))
        await store.append(run, [record], [(number, user("hi"))], RunUsage(), DONE)


@pytest.fixture
def in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_steps, "MAX_MESSAGES_AT_ONCE", 3)
    for module in (delete_steps, changes, expired_sessions):
        monkeypatch.setattr(module, "MAX_RUNS_AT_ONCE", 3)


@pytest.mark.usefixtures("in_small_batches")
@pytest.mark.parametrize("by", ["person", "retention"])
async def test_a_session_with_many_runs_vanishes_at_once_and_is_deleted_in_batches(
    place: Place, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    database = await place.open(session_tables.SCHEMA, queue.SCHEMA)
    store = SessionStore(database, lambda: OLD)
    await long_session(store)
    await long_session(SessionStore(database, lambda: OLD, "other"))
    await long_session(store, "kept")
    done = await store.create_run("new", "kept", "hi")

    async def delete_and_look(database: Database, tenant: str, session_id: str) -> list[str]:
        if tenant == "local":
            assert await store.session("long") is None
            assert await store.run("long0") is None and await store.run("long6") is None
            shown = [run.id for run in await store.runs(limit=99)]
            assert shown == ["new", *(f"kept{number}" for number in range(6, -1, -1))]
            status = await run_status_rows(database, "local", 99, 99, ["long0"])
            assert list(status) == shown
            with pytest.raises(StoreError, match="being deleted"):
                await store.create(Session("long", "a"))
            with pytest.raises(StoreError, match="being deleted"):
                await store.create_run("late", "long", "hi")
        return await delete_steps.delete_hidden(database, tenant, session_id)

    monkeypatch.setattr(changes, "delete_hidden", delete_and_look)
    monkeypatch.setattr(expired_sessions, "delete_hidden", delete_and_look)
    if by == "person":
        before = database.commits
        found = await changes.delete_session(store, "long")
        assert found is not None and found.sessions == ("long",)
        assert sorted(found.runs) == [f"long{number}" for number in range(7)]
        assert database.commits - before >= 6
        assert await changes.delete_session(store.of("other"), "long") is not None
    else:
        assert await ExpiredSessions(database).delete(BEFORE) == 2
    assert await changes.delete_session(store, "kept") is None
    await store.append(done, [], [], RunUsage(), DONE)
    assert await database.read(lambda c: c.execute(LEFT).fetchone()) == (8, 7, 7, 0)
    await long_session(store)
    assert len(await store.runs(session_id="long")) == 7
    await database.close()


@pytest.mark.usefixtures("in_small_batches")
async def test_a_deletion_that_was_interrupted_is_continued_by_the_next_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas = (session_tables.SCHEMA, queue.SCHEMA, receipt_tables, workflow_tables)
    database = await place.open(*schemas)
    store = SessionStore(database)
    await long_session(store)
    await long_session(store, "child", "long")

    async def crash(*_: object) -> list[str]:
        raise OSError("killed")

    with monkeypatch.context() as crashing:
        crashing.setattr(changes, "delete_hidden", crash)
        with pytest.raises(OSError, match="killed"):
            await changes.delete_session(store, "long")
    await database.close()
    database = await place.open(*schemas)
    assert await SessionStore(database).runs() == []

    async def is_deleted() -> bool:
        return await database.read(lambda c: c.execute(LEFT).fetchone()) == (0, 0, 0, 0)

    assert not await is_deleted()
    async with SessionRetention(database, cast("StoredCanvases", None), 0).serving():
        await until(is_deleted)
    await database.close()


async def test_old_runs_of_sessions_in_use_are_looked_at_once(tmp_path: Path) -> None:
    database = await Place(tmp_path / "evoclaw.db").open(session_tables.SCHEMA, queue.SCHEMA)
    history, expired = History(database), ExpiredSessions(database)
    found: list[int] = []
    for first, last in ((0, 20), (20, 200)):
        for number in range(first, last):
            await history.talk(f"used {number}", OLD)
            await history.talk(f"used {number}", NEW)
        assert await ExpiredSessions(database).delete(BEFORE) == 0
        assert await expired.delete(BEFORE) == 0
        async with steps_of(database) as steps:
            assert await expired.delete(BEFORE + last) == 0
            found.append(steps())
    assert found[1] <= found[0] + 50, found
    await database.close()


async def test_finding_expired_sessions_does_not_grow_with_younger_ones(tmp_path: Path) -> None:
    database = await Place(tmp_path / "evoclaw.db").open(session_tables.SCHEMA, queue.SCHEMA)
    history = History(database)
    found: list[int] = []
    for first, last in ((0, 2 * BATCH_ROWS), (2 * BATCH_ROWS, 8 * BATCH_ROWS)):
        for number in range(first, last):
            await history.talk(f"new {number}", NEW)
        async with steps_of(database) as steps:
            assert await ExpiredSessions(database).delete(BEFORE) == 0
            found.append(steps())
    assert found[1] <= found[0] + 50, found
    await database.close()


def receipt(chain: str, counter: int, at: float, flaw: str = "") -> StoredReceipt:
    name = f"{chain}{counter}{flaw}"
    return StoredReceipt(
        "pi", chain, counter, name, "", name, "run", "local", at, "{}", "signature", flaw
    )


async def test_old_receipts_are_deleted_except_for_the_last_of_each_chain(place: Place) -> None:
    schemas = (session_tables.SCHEMA, queue.SCHEMA, receipt_tables, workflow_tables)
    database = await place.open(*schemas)
    store, keep_days = ReceiptStore(database), 1.0
    chain = [receipt("a", n, OLD) for n in range(1, PRUNE_BATCH_ROWS + 10)]
    outside = [receipt("", 0, OLD), receipt("a", 3, OLD, "fork")]
    kept = [receipt("b", 1, OLD), receipt("c", 1, now()), receipt("c", 2, now())]
    await store.add(*chain, *outside, *kept)
    retention = SessionRetention(database, cast("StoredCanvases", None), keep_days)

    async def names() -> list[str]:
        return [one.hash for one in await store.list_receipts()]

    async def all_deleted() -> bool:
        return await names() == [chain[-1].hash, "b1", "c1", "c2"]

    async with retention.serving():
        await until(all_deleted)
    await database.close()


async def test_old_idempotency_keys_are_deleted_in_batches(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.store.runs.queue.PRUNE_BATCH_ROWS", 4)
    database = await place.open(session_tables.SCHEMA, approvals.SCHEMA, queue.SCHEMA)
    rows = [("local", "ann", f"k{number}", "", "r", float(number)) for number in range(20)]
    put = "INSERT INTO queue_keys VALUES (?, ?, ?, ?, ?, ?)"
    await database.write(lambda c: c.executemany(put, rows))
    store = RunQueue(SessionStore(database), "holder", clock=lambda: 100.0)
    before = database.commits
    await store.delete_old_keys(90.0)
    assert database.commits == before + 3
    left = await database.read(lambda c: c.execute("SELECT min(at) FROM queue_keys").fetchone())
    assert left[0] == 10.0
    await database.close()
