"""What is long over is forgotten; what goes on is not."""

from __future__ import annotations

from evoclaw.core.events import Record, Replied, StopReason
from evoclaw.core.messages import Reply, user
from evoclaw.store.runs import queue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.changes import delete_expired_sessions
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from tests.support.databases import Place

OLD, NEW, BEFORE = 100.0, 1000.0, 500.0


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

    assert await delete_expired_sessions(database, BEFORE) == 123
    left = {one.session.id for one in await store.sessions("")}
    assert left == {"goes on", "waits", "again", "below", "new"}
    assert await other.sessions("") == []
    assert await store.records("r1") == [] and await store.messages("over") == []
    assert await store.run("r1") is None and await store.todos("over") is None
    for run in ("r2", "r3", "r4", "r5", "r6"):
        assert len(await store.records(run)) == 1
    assert await delete_expired_sessions(database, BEFORE) == 0
    await database.close()
