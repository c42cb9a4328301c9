from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import Record, Replied, RunFinished, RunStarted, StopReason
from evoclaw.core.messages import Message, Reply, user
from evoclaw.core.profile import Profile
from evoclaw.store.databases.database import Conflict, seal_blob
from evoclaw.store.sessions.sessions import Fenced, RunUsage, Session, SessionStore
from evoclaw.store.sessions.tables import SCHEMA, StoredRun
from tests.support.databases import Place, hold_deferred_commits


async def opened(place: Place) -> SessionStore:
    return SessionStore(await place.open(SCHEMA), clock=lambda: 1000.0)


def record(run_id: str, seq: int, text: str) -> Record:
    return Record(run_id, seq, 1.0, Replied(Reply(text)))


async def test_a_session_is_created_once_and_survives_a_restart(place: Place) -> None:
    made = Session("s1", "coder", "ann", "first", "", 0, frozenset({"shell"}), frozenset({"bash"}))
    async with await opened(place) as store:
        kept = await store.create(made)
        again = await store.create(Session("s1", "other", "bob"))
    assert kept == again
    assert (kept.agent, kept.owner, kept.created_at) == ("coder", "ann", 1000.0)
    async with await opened(place) as store:
        assert await store.session("s1") == kept
        assert await store.session("s2") is None


async def test_sessions_are_listed_newest_first_by_owner_agent_and_parent(
    place: Place,
) -> None:
    async with await opened(place) as store:
        await store.create(Session("root", "a", "ann"))
        await store.create(Session("child", "b", "ann", parent="root", depth=1))
        await store.create(Session("grandchild", "a", "ann", parent="child", depth=2))
        await store.create(Session("other", "a", "ann"))
        await store.create(Session("foreign", "a", "bob"))

        async def ids(owner: str, **filters: Any) -> list[str]:
            return [one.session.id for one in await store.sessions(owner, **filters)]

        assert await ids("ann") == ["other", "grandchild", "child", "root"]
        assert await ids("ann", within="child") == ["grandchild", "child"]
        assert await ids("ann", within="root", agent="a") == ["grandchild", "root"]
        assert await ids("bob", within="root") == []
        assert await ids("ann", limit=2) == ["other", "grandchild"]
        assert await ids("ann", before="grandchild", limit=1) == ["child"]
        assert await ids("ann", before="root") == await ids("ann", before="gone") == []


async def test_records_messages_and_usage_of_a_run_survive_a_restart(
    place: Place,
) -> None:
    opening: tuple[Message, ...] = (user("hi"),)
    records = [
        Record("r1", 1, 1.0, RunStarted("m", opening, LoopSettings(), Profile())),
        record("r1", 2, "hello"),
        Record("r1", 3, 2.0, RunFinished(StopReason.COMPLETED, "hello")),
    ]
    async with await opened(place) as store:
        await store.create(Session("s1", "a"))
        run = await store.create_run("r1", "s1", "hi")
        assert run.is_open and await store.create_run("r1", "s1", "other") == run
        await store.append(run, records[:1], [(0, opening[0])], RunUsage(), None)
        spent = RunUsage(1, 2, 30, 4, 0.5)
        await store.append(run, records[1:], [(1, Reply("hello"))], spent, StopReason.COMPLETED)
    async with await opened(place) as store:
        assert await store.records("r1") == records
        assert await store.last_record("r1") == records[-1]
        assert await store.last_record("r2") is None
        assert await store.messages("s1") == [(0, opening[0]), (1, Reply("hello"))]
        assert await store.messages("s1", 1, 5) == [(1, Reply("hello"))]
        found = await store.summary("s1")
        assert found is not None and found.last is not None
        assert (found.messages, found.last.stop, found.last.usage) == (2, "completed", spent)
        assert (found.last.message, found.last.ended_at) == ("hi", 1000.0)
        assert not found.last.is_open


async def test_a_duplicate_record_is_refused_with_its_whole_batch(
    place: Place,
) -> None:
    async with await opened(place) as store:
        await store.create(Session("s1", "a"))
        run = await store.create_run("r1", "s1", "hi")
        await store.append(run, [record("r1", 1, "one")], [(0, user("hi"))], RunUsage(), None)
        with pytest.raises(Conflict):
            twice = [record("r1", 2, "two"), record("r1", 1, "again")]
            await store.append(run, twice, [(1, user("no"))], RunUsage(9), None)
        assert await store.records("r1") == [record("r1", 1, "one")]
        assert len(await store.messages("s1")) == 1


async def test_spending_of_child_runs_adds_up_and_an_unknown_cost_stays_unknown(
    place: Place,
) -> None:
    async with await opened(place) as store:
        top = await store.create_run("top", "s1", "hi")
        below = await store.create_run("below", "s2", "do", parent_run="top", root_run="top")
        await store.create_run("else", "s3", "hi")
        assert [one.id for one in await store.runs(parent_run="top")] == ["below"]
        assert await store.runs(parent_run="top", state="ended") == []
        await store.append(top, [], [], RunUsage(2, 1, 10, 5, 0.25), None)
        await store.append(below, [], [], RunUsage(3, 4, 20, 5, 0.5), StopReason.COMPLETED)
        assert await store.usage("top") == RunUsage(5, 5, 30, 10, 0.75)
        await store.append(below, [], [], RunUsage(3, 4, 20, 5, None), StopReason.COMPLETED)
        assert (await store.usage("top")).cost is None
        assert await store.usage("never") == RunUsage()


async def test_only_unfinished_background_runs_are_left_behind(place: Place) -> None:
    async with await opened(place) as store:
        for name, background in (("a", True), ("b", False), ("c", True)):
            await store.create_run(name, name, "do", parent_run="top", background=background)
        done = await store.run("c")
        assert done is not None
        await store.append(done, [], [], RunUsage(), StopReason.COMPLETED)
        assert [run.id for run in await store.open_background_runs("top")] == ["a"]


async def test_todos_are_stored_per_session_and_replaced_as_a_whole(place: Place) -> None:
    async with await opened(place) as store:
        assert await store.todos("s1") is None
        await store.put_todos("s1", b"[1]")
        await store.put_todos("s1", b"[2]")
        await store.put_todos("s2", b"[3]")
    async with await opened(place) as store:
        assert (await store.todos("s1"), await store.todos("s2")) == (b"[2]", b"[3]")


async def test_a_question_is_stored_once_and_its_first_answer_counts(place: Place) -> None:
    async with await opened(place) as store:
        asked = await store.questions.ask("r1.1.0", "s1", b"why")
        assert asked.answer is None
        assert not await store.questions.answer("r1.9.9", b"who")
        assert [one.id for one in await store.questions.waiting()] == ["r1.1.0"]
    async with await opened(place) as store:
        assert await store.questions.answer("r1.1.0", b"because")
        assert not await store.questions.answer("r1.1.0", b"no")
        again = await store.questions.ask("r1.1.0", "s1", b"changed")
        assert (again.question, again.answer) == (b"why", b"because")
        assert await store.questions.waiting() == []


async def test_unanswered_questions_are_closed_with_their_run_only(place: Place) -> None:
    async with await opened(place) as store:
        for name in ("r1.1.0", "r1.2.0", "r11.1.0", "r2.1.0"):
            await store.questions.ask(name, "s1", b"why")
        await store.questions.answer("r1.1.0", b"because")
        await store.questions.close_waiting("r1")
        assert [one.id for one in await store.questions.waiting("s1")] == ["r11.1.0", "r2.1.0"]
        assert not await store.questions.answer("r1.2.0", b"late")
        kept = await store.questions.get("r1.1.0")
        assert kept is not None and kept.answer == b"because"


async def test_fault_10_an_append_with_a_lower_epoch_is_fenced(place: Place) -> None:
    async with await opened(place) as store:
        await store.create(Session("s1", "a"))
        run = await store.create_run("r1", "s1", "hi")
        await store.append(run, [record("r1", 1, "mine")], [], RunUsage(1), None, epoch=0)
        take = "UPDATE runs SET epoch = 2, holder = 'other', lease_until = 2000.0"
        await store.database.write(lambda connection: connection.execute(take))
        for epoch in (0, 1):
            with pytest.raises(Fenced, match="epoch 2") as refused:
                store.append_later(run, [record("r1", 2, "late")], [], RunUsage(9), epoch=epoch)
                await store.database.flush()
            assert (refused.value.epoch, refused.value.now) == (epoch, 2)
        await store.append(run, [record("r1", 2, "theirs")], [], RunUsage(2), None, epoch=2)
        assert [one.event for one in await store.records("r1")] == [
            Replied(Reply("mine")),
            Replied(Reply("theirs")),
        ]
        now = await store.run("r1")
        assert now is not None and now.usage == RunUsage(2)
        assert (now.epoch, now.holder, now.lease_until) == (2, "other", 2000.0)


async def test_steps_of_many_runs_in_one_commit_are_stored_or_fenced_each_by_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    async with await opened(place) as store:
        runs: list[StoredRun] = []
        for number in (1, 2, 3):
            await store.create(Session(f"s{number}", "a"))
            runs.append(await store.create_run(f"r{number}", f"s{number}", "hi"))
        take = "UPDATE runs SET epoch = 2 WHERE id = 'r2'"
        await store.database.write(lambda connection: connection.execute(take))

        def append(run: StoredRun, seq: int, stop: StopReason | None = None) -> Awaitable[None]:
            text = f"{run.id} {seq}"
            return store.append(
                run,
                [record(run.id, seq, text)],
                [(seq // 2, user(text))],
                RunUsage(seq),
                stop,
                epoch=1,
            )

        first, fenced, third = runs
        ends = (append(first, 1), append(fenced, 1), append(third, 1), append(first, 2))
        last = (append(fenced, 2), append(first, 3, StopReason.COMPLETED))
        found = await asyncio.gather(*ends, *last, return_exceptions=True)

        assert [type(result) for result in found] == [
            *(type(None), Fenced, type(None), type(None), Fenced, type(None))
        ]
        assert [each.seq for each in await store.records("r1")] == [1, 2, 3]
        assert await store.messages("s1") == [(0, user("r1 1")), (1, user("r1 3"))]
        assert await store.records("r2") == [] and await store.messages("s2") == []
        assert await store.messages("s3") == [(0, user("r3 1"))]
        stored = [await store.run(run.id) for run in runs]
        assert [run and (run.usage.turns, run.stop, run.ended_at) for run in stored] == [
            (3, StopReason.COMPLETED, 1000.0),
            (0, None, None),
            (1, None, None),
        ]


async def test_a_database_with_the_indexes_of_an_older_version_is_migrated(place: Place) -> None:
    older = msgspec.structs.replace(
        SCHEMA,
        migrations=SCHEMA.migrations[:3],
        postgres_migrations=SCHEMA.postgres_migrations[:3],
    )
    put_session = (
        "INSERT INTO sessions (tenant, id, owner, parent, agent, session) "
        "VALUES ('local', 's1', ?, ?, ?, ?)"
    )
    put_run = (
        "INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background, "
        "began_at) VALUES ('local', ?, 's1', ?, ?, 'r1', 0, 1.0)"
    )
    async with SessionStore(await place.open(older)) as store:
        session, asked = store.session_values(Session("s1", "a")), seal_blob(store.database, b"hi")
        runs = [("r1", asked, ""), ("r2", asked, "r1")]
        await store.database.write(lambda c: c.execute(put_session, session))
        await store.database.write(lambda c: c.executemany(put_run, runs))
    async with await opened(place) as store:
        again = await store.create_run("r1", "s1", "again")
        assert again.message == "hi"
        await store.append(again, [record("r1", 1, "now")], [], RunUsage(2), None, epoch=1)
        child = await store.run("r2")
        assert child is not None
        await store.append(child, [], [], RunUsage(3), StopReason.COMPLETED, epoch=1)
        assert await store.usage("r1") == RunUsage(5)
        assert await store.usage("r2") == RunUsage()


async def test_runs_are_listed_newest_first_and_page_by_page(place: Place) -> None:
    async with await opened(place) as store:
        for owner in ("ann", "bob"):
            await store.create(Session(owner, "a", owner))
        ends = (None, StopReason.WAITING, StopReason.COMPLETED)
        for number in range(9):
            owner = ("ann", "bob")[number % 2]
            run = await store.create_run(
                f"r{number}", owner, "hi", run_request=b"errand" if number else None
            )
            await store.append(run, [], [], RunUsage(), ends[number % 3])

        async def ids(**filters: Any) -> str:
            return "".join(run.id[1:] for run in await store.runs(**filters))

        assert await ids() == "876543210"
        assert (await ids(limit=3), await ids(limit=3, before="r6")) == ("876", "543")
        assert await ids(before="r0") == await ids(before="unknown") == ""
        assert await ids(state="open") == "630"
        assert await ids(state="waiting") == "741"
        assert await ids(state="ended", owner="ann") == "82"
        assert await ids(session_id="bob") == "7531"
        assert await ids(owner="nobody") == ""
        assert await store.of("other").runs() == []
        assert (await store.run_request("r0"), await store.run_request("r1")) == (None, b"errand")


async def test_runs_are_listed_and_counted_by_agent(place: Place) -> None:
    async with await opened(place) as store:
        for session, agent, owner in (("a1", "a", "ann"), ("a2", "a", "bob"), ("b1", "b", "ann")):
            await store.create(Session(session, agent, owner))
            for number in range(2):
                await store.create_run(f"{session}.{number}", session, "hello")
        found = [run.id for run in await store.runs(agent="a")]
        assert found == ["a2.1", "a2.0", "a1.1", "a1.0"]
        assert [run.id for run in await store.runs(agent="a", before="a2.0", owner="ann")] == [
            "a1.1",
            "a1.0",
        ]
        assert await store.runs(agent="c") == []
        assert {(agent, count) for agent, count, _, _ in await store.run_counts()} == {
            ("a", 4),
            ("b", 2),
        }
        assert await store.run_counts("bob") == [("a", 2, 1000.0, 0.0)]
        assert await store.of("acme").run_counts() == []


async def test_ended_runs_are_those_that_failed_or_took_long(place: Place) -> None:
    clock = [1000.0]
    store = SessionStore(await place.open(SCHEMA), clock=lambda: clock[0])
    async with store:
        await store.create(Session("s1", "coder", "ann"))
        ends = {
            "quick": (1, StopReason.COMPLETED),
            "slow": (50, StopReason.COMPLETED),
            "broken": (1, StopReason.ERROR),
            "waits": (99, StopReason.WAITING),
        }
        for name, (seconds, stop) in ends.items():
            run = await store.create_run(name, "s1", "hi")
            clock[0] += seconds
            await store.append(run, (), (), RunUsage(), stop)

        async def ids(since: float = 0.0, limit: int = 10) -> list[str]:
            return [run.id for run in await store.ended_runs(since, 50.0, limit)]

        assert await ids() == ["slow", "broken"]
        assert await ids(limit=1) == ["slow"]
        assert await ids(since=1052.0) == ["broken"]
        assert await store.of("other").ended_runs(0.0, 1.0, 10) == []
