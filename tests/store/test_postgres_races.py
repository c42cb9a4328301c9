"""Functions and steps of several processes that meet on PostgreSQL, where no lock is global."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex

import pytest

from evoclaw.core.events import StopReason
from evoclaw.store import channels
from evoclaw.store.channels import DUE, ChannelStore, NewInboundMessage
from evoclaw.store.databases.database import Database, add_checksum
from evoclaw.store.databases.export_import import export_to, import_from
from evoclaw.store.databases.steps import Step
from evoclaw.store.governance import approvals, devices
from evoclaw.store.governance.approval_steps import CLAIM_APPROVAL
from evoclaw.store.governance.approvals import (
    ApprovalClaim,
    ApprovalStatus,
    ApprovalStore,
    StoredApproval,
)
from evoclaw.store.governance.devices import DEVICES_LOCK, REPLACE_DEVICE, DeviceStore
from evoclaw.store.metrics import tables as metrics_tables
from evoclaw.store.metrics.store import MetricsStore, MetricsWindow
from evoclaw.store.runs import queue
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.inbox_steps import ADD_MESSAGE
from evoclaw.store.runs.queue import (
    Claim,
    EnqueueOutcome,
    QueuedRun,
    QueueLimits,
    RunEnd,
    RunQueue,
)
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.changes import delete_session, rename
from evoclaw.store.sessions.delete_steps import DELETE_SESSION, session_lock
from evoclaw.store.sessions.expired_sessions import ExpiredSessions
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore, StoredRun
from evoclaw.store.workflows import tables as workflow_tables
from evoclaw.store.workflows.steps import ADD_EVENT, CLAIM
from evoclaw.store.workflows.workflows import NewWorkflow, WorkflowStore, WorkflowUpdate
from tests.support.databases import Place
from tests.support.races import PausingDatabase, other_process

pytestmark = pytest.mark.process

SCHEMAS = (
    session_tables.SCHEMA,
    queue.SCHEMA,
    metrics_tables.SCHEMA,
    approvals.SCHEMA,
    devices.SCHEMA,
    channels.SCHEMA,
    workflow_tables.SCHEMA,
)
NOW = 1_000.0
INSERT_RUN = (
    "INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background, began_at) "
    "VALUES ('local', 'r2', 's1', '\\x00', '', 'r2', 0, 1)"
)


def clock() -> float:
    return NOW


@pytest.fixture
def place(postgres_url: str) -> Place:
    return Place(postgres_url, f"test_{token_hex(6)}")


@pytest.fixture
async def database(place: Place) -> AsyncIterator[Database]:
    database = await place.open(*SCHEMAS)
    yield database
    await database.close()


@pytest.fixture
async def sessions(database: Database) -> SessionStore:
    store = SessionStore(database, clock)
    await store.create(Session("s1", "agent"))
    return store


@pytest.fixture
async def run(sessions: SessionStore) -> StoredRun:
    return await sessions.create_run("r1", "s1", "hi")


async def end(sessions: SessionStore, run: StoredRun) -> None:
    await sessions.append(run, [], [], RunUsage(), StopReason.COMPLETED)


END_RUN = "UPDATE runs SET stop = 'completed', ended_at = 1 WHERE id = 'r1'"


async def test_a_message_to_a_run_that_just_ends_is_refused(
    place: Place, sessions: SessionStore, run: StoredRun
) -> None:
    inbox = Inbox(sessions, clock)
    async with other_process(place) as other:
        await other.execute(END_RUN)
        sending = asyncio.create_task(inbox.add_message("local", "r1", b"more"))
        assert await other.commit_when_blocking(sending) == ("s1", False)
    assert await inbox.messages("local", "r1") == []


async def test_the_end_of_a_run_waits_for_a_message_that_is_being_stored(
    place: Place, sessions: SessionStore, run: StoredRun
) -> None:
    message = Step(ADD_MESSAGE, ("local", "r1", add_checksum(b"more")))
    async with other_process(place) as other:
        assert await other.apply(message) == ["s1", True]
        ending = asyncio.create_task(end(sessions, run))
        await other.commit_when_blocking(ending)
    assert await Inbox(sessions, clock).messages("local", "r1") == [b"more"]


async def test_messages_of_two_processes_get_different_numbers(
    place: Place, sessions: SessionStore, run: StoredRun
) -> None:
    inbox, first = Inbox(sessions, clock), Step(ADD_MESSAGE, ("local", "r1", add_checksum(b"1")))
    async with other_process(place) as other:
        await other.apply(first)
        second = asyncio.create_task(inbox.add_message("local", "r1", b"2"))
        assert await other.commit_when_blocking(second) == ("s1", True)
    assert await inbox.messages("local", "r1") == [b"1", b"2"]


async def test_a_run_that_just_ends_is_not_cancelled(
    place: Place, sessions: SessionStore, run: StoredRun
) -> None:
    inbox = Inbox(sessions, clock)
    async with other_process(place) as other:
        await other.execute(END_RUN)
        cancelling = asyncio.create_task(inbox.cancel("local", "r1"))
        assert not await other.commit_when_blocking(cancelling)
    assert not await inbox.cancelled_runs()


@pytest.mark.parametrize("by", ["function", "step"])
async def test_a_session_that_just_gets_a_run_is_not_deleted(
    place: Place, sessions: SessionStore, by: str
) -> None:
    lock = "SELECT pg_advisory_xact_lock(hashtextextended('evoclaw session/local/s1', 0))"
    async with other_process(place) as other:
        if by == "function":
            await other.run(sessions.create_run_work("r2", "s1", "hi"))
        else:
            await other.execute(lock)
            await other.execute(INSERT_RUN)
        deleting = asyncio.create_task(delete_session(sessions, "s1"))
        assert await other.commit_when_blocking(deleting) is None
    assert await sessions.session("s1") is not None


async def test_a_run_for_a_session_that_is_just_deleted_is_refused(
    place: Place, sessions: SessionStore
) -> None:
    runs, limits = RunQueue(sessions, "us", clock=clock), QueueLimits(9, 9, 9)
    deletion = Step(DELETE_SESSION, ("local", "s1", 9), lock=session_lock("local", "s1"))
    async with other_process(place) as other:
        assert await other.apply(deletion) == [["s1"], []]
        adding = asyncio.create_task(runs.enqueue("local", next_run("r2"), limits, claim=True))
        result = await other.commit_when_blocking(adding)
    assert result.outcome is EnqueueOutcome.NO_SESSION


async def test_the_step_that_ends_a_run_finds_a_message_that_is_being_stored(
    place: Place, sessions: SessionStore
) -> None:
    runs, limits = RunQueue(sessions, "us", clock=clock), QueueLimits(9, 9, 9)
    stored = await runs.enqueue("local", next_run("r1"), limits, claim=True)
    assert stored.run is not None
    message = Step(ADD_MESSAGE, ("local", "r1", add_checksum(b"more")))
    finish = RunEnd([], [], RunUsage(), StopReason.COMPLETED)
    async with other_process(place) as other:
        await other.apply(message)
        claim = Claim("local", "r1", stored.epoch)
        ending = asyncio.create_task(runs.end_run(claim, stored.run, finish))
        assert await other.commit_when_blocking(ending)


async def moving_messages(
    sessions: SessionStore, run: StoredRun, database: Database
) -> tuple[PausingDatabase, asyncio.Task[None]]:
    """Messages that come too late become the next run, in a transaction that is not committed."""
    await Inbox(sessions, clock).add_message("local", "r1", b"more")
    await end(sessions, run)
    pausing = PausingDatabase(database, "DELETE FROM queue_inbox")
    inbox = Inbox(SessionStore(pausing.as_database, clock), clock)
    moving = asyncio.create_task(inbox.move_to_next_run("local", "r1", next_run("r2")))
    await pausing.wait_until_reached()
    return pausing, moving


def next_run(run_id: str) -> QueuedRun:
    return QueuedRun(run_id, Session("s1", "agent"), False, "more", b"request")


async def test_late_messages_become_one_run_with_two_processes(
    place: Place, database: Database, sessions: SessionStore, run: StoredRun
) -> None:
    pausing, moving = await moving_messages(sessions, run, database)
    other = await place.open(*SCHEMAS)
    inbox = Inbox(SessionStore(other, clock), clock)
    await inbox.move_to_next_run("local", "r1", next_run("r3"))
    await other.close()
    pausing.resumed.set()
    await moving
    assert [found.id for found in await sessions.runs(state="open")] == ["r3"]


async def test_a_session_whose_late_messages_just_become_a_run_is_not_deleted(
    database: Database, sessions: SessionStore, run: StoredRun
) -> None:
    pausing, moving = await moving_messages(sessions, run, database)
    deleting = asyncio.create_task(delete_session(sessions, "s1"))
    await pausing.resume_when_blocking(deleting)
    await moving
    assert await deleting is None and pausing.attempts == 1
    assert await sessions.run("r2") is not None


async def test_retention_keeps_a_session_that_just_gets_a_run(
    place: Place, database: Database, sessions: SessionStore
) -> None:
    async with other_process(place) as other:
        await other.run(sessions.create_run_work("r2", "s1", "hi"))
        deleting = asyncio.create_task(ExpiredSessions(database).delete(NOW + 1))
        assert await other.commit_when_blocking(deleting) == 0
    assert await sessions.session("s1") is not None


async def test_a_session_that_is_renamed_while_it_is_deleted_stays_deleted(
    database: Database, sessions: SessionStore
) -> None:
    pausing = PausingDatabase(database, "UPDATE sessions")
    renaming = asyncio.create_task(rename(SessionStore(pausing.as_database, clock), "s1", "new"))
    await pausing.wait_until_reached()
    assert await delete_session(sessions, "s1") is not None
    pausing.resumed.set()
    assert await renaming is None
    assert pausing.attempts == 2


async def test_two_processes_that_rename_a_session_do_not_mix_their_changes(
    place: Place, database: Database, sessions: SessionStore
) -> None:
    pausing, other = PausingDatabase(database, "UPDATE sessions"), await place.open(*SCHEMAS)
    renaming = asyncio.create_task(rename(SessionStore(pausing.as_database, clock), "s1", "one"))
    await pausing.wait_until_reached()
    await rename(SessionStore(other, clock), "s1", "two")
    await other.close()
    pausing.resumed.set()
    await renaming
    found = await sessions.session("s1")
    assert found is not None and found.title == "one" and pausing.attempts == 2


async def test_a_question_of_a_run_that_just_ends_takes_no_answer(
    place: Place, sessions: SessionStore
) -> None:
    questions = sessions.questions
    await questions.ask("r1.1", "s1", b"which?")
    async with other_process(place) as other:
        await other.execute("UPDATE questions SET closed_at = 1 WHERE id = 'r1.1'")
        answering = asyncio.create_task(questions.answer("r1.1", b"this"))
        assert not await other.commit_when_blocking(answering)


def claim_of(holder: str, id_: str = "a1", scope: str = "scope") -> ApprovalClaim:
    row = StoredApproval(id_, "local", "r1.1.1", "digest", scope, b"asked", NOW + 60)
    return ApprovalClaim(row, 1, holder)


def claim_step(holder: str, id_: str = "a1") -> Step:
    request, new = ("local", "r1.1.1", "digest"), (id_, add_checksum(b"asked"), NOW + 60)
    user = (1, holder, False)
    return Step(CLAIM_APPROVAL, (request, ("scope", "scope"), new, user, True, 10, NOW))


async def test_an_approval_is_requested_once_by_two_processes(
    place: Place, database: Database
) -> None:
    store = ApprovalStore(database, clock)
    async with other_process(place) as other:
        assert await other.apply(claim_step("them", "theirs")) == ["waiting", "theirs"]
        claiming = asyncio.create_task(store.claim(claim_of("us", "ours")))
        status, row = await other.commit_when_blocking(claiming)
    assert status is ApprovalStatus.WAITING and row is not None and row.id == "theirs"
    assert [row.id for row in await store.waiting("local")] == ["theirs"]


async def test_an_approval_for_one_call_is_used_by_one_process(
    place: Place, database: Database
) -> None:
    store = ApprovalStore(database, clock)
    await store.claim(claim_of("us"))
    await store.answer("a1", "local", "once", b"yes")
    async with other_process(place) as other:
        assert await other.apply(claim_step("them")) == ["once", "a1"]
        claiming = asyncio.create_task(store.claim(claim_of("us")))
        status, _ = await other.commit_when_blocking(claiming)
    assert status is ApprovalStatus.USED


@pytest.mark.parametrize(
    ("change", "status"),
    [("closed_at = 1", ApprovalStatus.CLOSED), ("decision = 'deny'", ApprovalStatus.DENIED)],
)
async def test_an_approval_that_is_just_closed_or_decided_takes_no_answer(
    place: Place, database: Database, change: str, status: ApprovalStatus
) -> None:
    store = ApprovalStore(database, clock)
    await store.claim(claim_of("us"))
    async with other_process(place) as other:
        await other.execute(f"UPDATE approvals SET {change} WHERE id = 'a1'")
        answering = asyncio.create_task(store.answer("a1", "local", "once", b"yes"))
        assert await other.commit_when_blocking(answering) == (status, False)


async def test_a_standing_approval_that_is_just_withdrawn_is_not_used(
    place: Place, database: Database
) -> None:
    store = ApprovalStore(database, clock)
    await store.claim(claim_of("us"))
    await store.answer("a1", "local", "session", b"yes")
    async with other_process(place) as other:
        await other.execute("UPDATE approvals SET closed_at = 1 WHERE id = 'a1'")
        using = asyncio.create_task(store.use_standing("scope", "local"))
        assert await other.commit_when_blocking(using) is None


def workflow(id_: str) -> NewWorkflow:
    return NewWorkflow(id_, "flow", "digest", b"plan", b"started", key=f"schedule:{id_}")


async def test_a_schedule_is_started_by_one_of_two_processes(
    place: Place, database: Database
) -> None:
    pausing, other = (
        PausingDatabase(database, "INSERT INTO workflow_runs"),
        await place.open(*SCHEMAS),
    )
    ours = WorkflowStore(pausing.as_database, clock)
    planned = await WorkflowStore(database, clock).put_schedule("flow", "rule", NOW)
    starting = asyncio.create_task(
        ours.start_scheduled(planned, NOW + 60, workflow("w1"), overlap=True)
    )
    await pausing.wait_until_reached()
    second = asyncio.create_task(
        WorkflowStore(other, clock).start_scheduled(planned, NOW + 60, workflow("w2"), overlap=True)
    )
    await pausing.resume_when_blocking(second)
    assert sorted(await asyncio.gather(starting, second)) == [False, True]
    await other.close()
    assert len(await WorkflowStore(database, clock).list()) == 1


async def test_a_workflow_that_another_process_claims_just_now_is_skipped(
    place: Place, database: Database
) -> None:
    store = WorkflowStore(database, clock)
    await store.create(workflow("w1"))
    await store.create(workflow("w2"))
    async with other_process(place) as other:
        assert await other.apply(Step(CLAIM, ("them", NOW, NOW + 10, 1))) == [["local", "w1"]]
        async with asyncio.timeout(5):
            assert [row.id for row in await store.claim("us", 10, 5)] == ["w2"]
        await other.commit()
    assert not await store.claim("us", 10, 5)


async def test_events_of_a_workflow_wait_for_one_from_outside(
    place: Place, database: Database
) -> None:
    store, running = WorkflowStore(database, clock), WorkflowUpdate("running")
    await store.create(workflow("w1"))
    await store.claim("us", 10, 5)
    outside = Step(ADD_EVENT, ("local", "w1", 1, add_checksum(b"outside"), NOW))
    async with other_process(place) as other:
        assert await other.apply(outside)
        appending = asyncio.create_task(store.append("w1", "us", 1, [b"ours"], running))
        assert await other.commit_when_blocking(appending) is None
    assert await store.append("w1", "us", 2, [b"ours"], running) == NOW
    assert [event.event for event in await store.events("w1")] == [b"started", b"outside", b"ours"]


def inbound(id_: str) -> NewInboundMessage:
    return NewInboundMessage("local", "box", "ann", id_, "c1", "digest", b"hi", "s1")


async def test_a_channel_message_is_stored_once_by_two_processes(
    place: Place, database: Database
) -> None:
    pausing, other = (
        PausingDatabase(database, "INSERT INTO channel_letters"),
        await place.open(*SCHEMAS),
    )
    adding = asyncio.create_task(
        ChannelStore(pausing.as_database, clock).add_message(inbound("m1"))
    )
    await pausing.wait_until_reached()
    second = asyncio.create_task(ChannelStore(other, clock).add_message(inbound("m1")))
    await pausing.resume_when_blocking(second)
    (one, is_new), (two, is_new_too) = await asyncio.gather(adding, second)
    await other.close()
    assert one.seq == two.seq and sorted((is_new, is_new_too)) == [False, True]


async def test_a_delivery_is_claimed_by_one_of_two_processes(
    place: Place, database: Database
) -> None:
    store = ChannelStore(database, clock)
    message, _ = await store.add_message(inbound("m1"))
    await store.add_delivery(message, "a1", b"answer")
    pausing, other = (
        PausingDatabase(database, "UPDATE channel_deliveries"),
        await place.open(*SCHEMAS),
    )
    claiming = asyncio.create_task(
        ChannelStore(pausing.as_database, clock).claim_deliveries(("box",), 60, 5)
    )
    await pausing.wait_until_reached()
    theirs, _ = await ChannelStore(other, clock).claim_deliveries(("box",), 60, 5)
    await other.close()
    pausing.resumed.set()
    ours, _ = await claiming
    assert len(theirs) == 1 and not ours and pausing.attempts == 2


async def test_a_late_failure_does_not_take_a_delivery_from_the_next_process(
    database: Database,
) -> None:
    now = [NOW]
    store = ChannelStore(database, lambda: now[0])
    message, _ = await store.add_message(inbound("m1"))
    await store.add_delivery(message, "a1", b"answer")
    (late,), _ = await store.claim_deliveries(("box",), 60, 5)
    now[0] += 61
    (next_,), _ = await store.claim_deliveries(("box",), 60, 5)
    await store.settle_delivery(late, DUE, "timeout", now[0])
    assert await store.claim_deliveries(("box",), 60, 5) == ([], now[0] + 60)
    await store.settle_delivery(next_, DUE, "timeout", now[0])
    assert len((await store.claim_deliveries(("box",), 60, 5))[0]) == 1


async def test_changes_of_devices_become_visible_in_the_order_of_their_revisions(
    place: Place, database: Database
) -> None:
    store = DeviceStore(database)
    async with other_process(place) as other:
        await other.apply(
            Step(REPLACE_DEVICE, ("d1", None, add_checksum(b"one")), lock=DEVICES_LOCK)
        )
        changing = asyncio.create_task(store.change("d2", lambda _: b"two"))
        await asyncio.sleep(0)
        assert await store.since(0) == (0, {})
        await other.commit_when_blocking(changing)
    assert await store.since(0) == (2, {"d1": b"one", "d2": b"two"})
    assert await store.since(1) == (2, {"d2": b"two"})


async def test_a_device_that_another_process_just_changed_is_read_again(
    place: Place, database: Database
) -> None:
    store = DeviceStore(database)
    await store.change("d1", lambda _: b"a")
    async with other_process(place) as other:
        values = ("d1", add_checksum(b"a"), add_checksum(b"ab"))
        await other.apply(Step(REPLACE_DEVICE, values, lock=DEVICES_LOCK))
        changing = asyncio.create_task(store.change("d1", lambda state: (state or b"") + b"c"))
        await other.commit_when_blocking(changing)
    assert await store.since(0) == (3, {"d1": b"abc"})


async def test_no_metrics_are_stored_for_a_run_that_is_just_deleted(
    database: Database, sessions: SessionStore, run: StoredRun
) -> None:
    await end(sessions, run)
    pausing = PausingDatabase(database, "SELECT ended_at FROM runs")
    finding = asyncio.create_task(
        MetricsStore(pausing.as_database).find(MetricsWindow("local", 0, 10_000))
    )
    await pausing.wait_until_reached()
    assert await delete_session(sessions, "s1") is not None
    pausing.resumed.set()
    await finding
    count = "SELECT count(*) FROM figures_runs"
    assert await database.read(lambda c: c.execute(count).fetchone()) == (0,)
    assert pausing.attempts == 2


async def test_deleting_a_run_waits_for_its_metrics_and_deletes_them(
    place: Place, database: Database, sessions: SessionStore, run: StoredRun
) -> None:
    await end(sessions, run)
    async with other_process(place) as other:
        await other.execute("SELECT ended_at FROM runs WHERE id = 'r1' FOR SHARE")
        await other.execute(
            "INSERT INTO figures_runs (tenant, ended_at, at, run_id, owner, agent, parent_run, "
            "parent_agent, stop, turns, seconds, tokens_in, tokens_out, cost, unpriced, saved) "
            "VALUES ('local', 1, 1, 'r1', '', '', '', '', 'completed', 0, 0, 0, 0, 0, 0, 0)"
        )
        deleting = asyncio.create_task(delete_session(sessions, "s1"))
        assert await other.commit_when_blocking(deleting) is not None
    count = "SELECT count(*) FROM figures_runs"
    assert await database.read(lambda c: c.execute(count).fetchone()) == (0,)


async def test_an_import_does_not_take_row_numbers_that_others_are_using(
    place: Place, database: Database, sessions: SessionStore, tmp_path: Path
) -> None:
    schemas, file = (session_tables.SCHEMA,), tmp_path / "export.zip"
    source = await Place(tmp_path / "source.db").open(*schemas)
    await SessionStore(source, clock).create(Session("imported", "agent"))
    await export_to(file, source, schemas)
    await source.close()
    async with other_process(place) as other:
        await other.run(sessions.create_work(Session("theirs", "agent")))
        importing = asyncio.create_task(import_from(file, database, schemas))
        await other.commit_when_blocking(importing)
    await sessions.create(Session("later", "agent"))
    found = [summary.session.id for summary in await sessions.sessions("")]
    assert found == ["later", "imported", "theirs", "s1"]
