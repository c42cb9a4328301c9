"""Creating, claiming and ending runs are steps: how often a run waits for the store, and what
processes that share a PostgreSQL do to each other without any other lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex
from typing import Any

import msgspec
import pytest

from evoclaw.core.events import (
    CallFinished,
    Record,
    RunFinished,
    StopReason,
    TextDelta,
    ToolsChanged,
)
from evoclaw.core.messages import TextBlock, ToolResult
from evoclaw.core.run import Bus
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.runs.hub import Topic
from evoclaw.providers.scripted import calls, says
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.postgres import PostgresDatabase
from evoclaw.store.databases.steps import Step
from evoclaw.store.runs.job_queue import JobQueue, SessionJob
from evoclaw.store.runs.job_worker import create_tables
from evoclaw.store.runs.queue import (
    Claim,
    EnqueueOutcome,
    EnqueueResult,
    QueuedRun,
    QueueLimits,
    RunEnd,
    RunQueue,
)
from evoclaw.store.sessions.sessions import Fenced, RunUsage, Session, SessionStore
from tests.support.databases import Place
from tests.support.runs import SCHEMAS, open_run_service

LIMITS = QueueLimits(100, 100, 100)
ROUNDS = 150


def entry(
    run_id: str, session: Session, *, creates_session: bool = False, key: str = ""
) -> QueuedRun:
    return QueuedRun(run_id, session, creates_session, "hello", b"{}", "ann", key, "digest")


def ending(stop: StopReason = StopReason.COMPLETED) -> RunEnd:
    return RunEnd((), (), RunUsage(turns=1), stop)


class Waits:
    """Counts how often a database is waited for."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        apply, write, flush = database.apply, database.write, database.flush

        async def counted_apply(step: Step, **more: Any) -> Any:
            self.names.append(step.procedure.name)
            return await apply(step, **more)

        async def counted_write(work: Any, *, wait: bool = True, **more: Any) -> Any:
            if wait:
                self.names.append("write")
            return await write(work, wait=wait, **more)

        async def counted_flush() -> None:
            self.names.append("flush")
            await flush()

        monkeypatch.setattr(database, "apply", counted_apply)
        monkeypatch.setattr(database, "write", counted_write)
        monkeypatch.setattr(database, "flush", counted_flush)


async def test_a_run_waits_for_the_store_when_accepted_before_each_reply_and_at_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_run_service(place) as house:
        replies = iter((calls(("work", {"what": "it"})), says("done")))
        house.answer = lambda agent, request: next(replies)
        await house.wait_ended((await house.start("warm up", agent="help")).run_id)
        replies = iter((calls(("work", {"what": "it"})), says("done")))
        waits = Waits(house.store.database, monkeypatch)
        view = await house.start("hello")
        await house.wait_ended(view.run_id)
        steps = [name for name in waits.names if name not in ("write",)]
        # What a tool waits for is its route's, which there is none of here.
        assert [name for name in steps if name != "flush"] == ["enqueue", "end_run"]
        assert 2 <= steps.count("flush") <= 4


async def test_the_end_of_a_run_closes_its_requests_and_releases_it_at_once(place: Place) -> None:
    async with open_run_service(place, serve=False) as house:
        queue, session = RunQueue(house.store, "one"), Session("s1", "lead", "ann")
        made = await queue.enqueue(
            "local", entry("r1", session, creates_session=True), LIMITS, claim=True
        )
        assert (made.outcome, made.epoch) == (EnqueueOutcome.NEW, 1)
        assert made.run is not None
        stored = await house.store.run("r1")
        assert stored is not None
        assert (stored.holder, stored.owner, stored.agent) == ("one", "ann", "lead")
        await house.store.questions.ask("r1.1.0", "s1", b"why?")
        await house.store.questions.ask("r10.1.0", "s1", b"why?")
        with pytest.raises(Fenced):
            await queue.end_run(Claim("local", "r1", 2), made.run, ending())
        assert len(await house.store.questions.waiting("s1")) == 2
        assert not await queue.end_run(Claim("local", "r1", 1), made.run, ending())
        stored = await house.store.run("r1")
        assert stored is not None
        assert (stored.stop, stored.holder, stored.usage.turns) == (StopReason.COMPLETED, "", 1)
        assert [question.id for question in await house.store.questions.waiting("s1")] == [
            "r10.1.0"
        ]


async def test_tools_that_are_stored_with_the_end_of_a_run_are_read_again(place: Place) -> None:
    async with open_run_service(place, serve=False) as house:
        queue, session = RunQueue(house.store, "one"), Session("s1", "lead", "ann")
        made = await queue.enqueue(
            "local", entry("r1", session, creates_session=True), LIMITS, claim=True
        )
        assert made.run is not None
        records = [
            Record("r1", 1, 1.0, ToolsChanged((Tool("bash", "Run it.", {"type": "object"}),))),
            Record("r1", 2, 1.0, RunFinished(StopReason.COMPLETED, "done")),
        ]
        end = msgspec.structs.replace(ending(), records=records)
        await queue.end_run(Claim("local", "r1", 1), made.run, end)
        assert await house.store.records("r1") == records


async def test_a_message_for_an_ended_run_is_refused(place: Place) -> None:
    async with open_run_service(place, serve=False) as house:
        view = await house.start("hello")
        assert await house.runs.cancel("local", view.run_id)
        async with house.runs.serving():
            await house.wait_ended(view.run_id)
        inbox = house.runs._inbox  # pyright: ignore[reportPrivateUsage]
        stored = await inbox.add_message("local", view.run_id, b"{}")
        assert stored is not None
        assert await inbox.messages("local", view.run_id) == []


def test_watchers_get_a_result_once_it_is_committed_and_in_order() -> None:
    topic, bus = Topic(10), Bus("r1")
    result = CallFinished(ToolResult("c1", "work", (TextBlock("done"),)))
    records = [bus.publish(event) for event in (TextDelta("a"), result, TextDelta("b"))]
    topic.publish(records[0], committed=False)
    topic.publish(records[1], committed=False)
    topic.publish(records[2], committed=False)
    assert topic.since(0) == records[:1]
    topic.release()
    assert topic.since(0) == records
    topic.publish(bus.publish(result), committed=False)
    topic.discard_unstored()
    topic.release()
    assert topic.since(0) == records


@asynccontextmanager
async def queues_of(url: str, count: int) -> AsyncGenerator[tuple[Database, list[JobQueue]]]:
    """Queues of so many processes on one PostgreSQL."""
    place = Place(url, f"test_{token_hex(6)}")
    async with AsyncExitStack() as stack:
        databases: list[Database] = []
        for _ in range(count):
            databases.append(await place.open(*SCHEMAS))
            stack.push_async_callback(databases[-1].close)
        assert isinstance(databases[0], PostgresDatabase)
        await create_tables(databases[0])
        yield (
            databases[0],
            [
                JobQueue(SessionStore(database), f"process {number}")
                for number, database in enumerate(databases)
            ],
        )


@pytest.mark.process
async def test_processes_that_start_together_create_the_tables_of_jobs_once(
    postgres_url: str,
) -> None:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    databases = [await place.open(*SCHEMAS) for _ in range(4)]
    await asyncio.gather(*(create_tables(database) for database in databases))
    count = "SELECT count(*) FROM procrastinate_jobs"
    assert (await databases[0].read(lambda c: c.execute(count).fetchone()))[0] == 0
    for database in databases:
        await database.close()


async def jobs_of(database: Database, session_id: str) -> list[str]:
    find = "SELECT status::text FROM procrastinate_jobs WHERE lock = ?"
    rows = await database.read(lambda c: c.execute(find, (f"local/{session_id}",)).fetchall())
    return [row[0] for row in rows]


async def fetch_job(database: Database, worker: int) -> SessionJob:
    def work(connection: Any) -> Any:
        fetch = (
            "SELECT id, attempts, args->>'tenant', args->>'session_id' "
            "FROM procrastinate_fetch_job_v2(NULL, ?)"
        )
        return connection.execute(fetch, (worker,)).fetchone()

    number, attempts, tenant, session_id = await database.write(work)
    return SessionJob(number, worker, attempts, tenant, session_id)


async def register_worker(database: Database) -> int:
    insert = "INSERT INTO procrastinate_workers DEFAULT VALUES RETURNING id"
    return (await database.write(lambda c: c.execute(insert).fetchone()))[0]


@pytest.mark.process
async def test_a_run_created_while_its_session_becomes_free_always_has_a_job(
    postgres_url: str,
) -> None:
    async with queues_of(postgres_url, 2) as (database, (driver, other)):
        driver.worker_id = worker = await register_worker(database)
        async with asyncio.timeout(120):
            for number in range(ROUNDS):
                session = Session(f"s{number}", "lead", "ann")
                first, second, third = (f"{session.id}-{name}" for name in "abc")
                made = await driver.enqueue(
                    "local", entry(first, session, creates_session=True), LIMITS, claim=True
                )
                # It ends while another process creates the next one.
                await both(driver, other, Claim("local", first, 1), made, entry(second, session))
                assert await jobs_of(database, session.id) == ["todo"], number
                # The last run of a job ends, and the job with it, unless there is another run.
                job = await fetch_job(database, worker)
                claim = await driver.claim_run(job)
                assert claim is not None
                assert claim == Claim("local", second, 1)
                next_claim = await both(driver, other, claim, made, entry(third, session), job)
                left = await jobs_of(database, session.id)
                assert left == (["doing"] if next_claim is not None else ["todo"]), number
                last = next_claim or await driver.claim_run(await fetch_job(database, worker))
                assert last is not None
                assert last.run_id == third
                await end(driver, last, made)
                for unfinished in await jobs_of(database, session.id):
                    assert unfinished == "doing"
                await database.write(lambda c: c.execute("DELETE FROM procrastinate_jobs").rowcount)


async def both(
    driver: JobQueue,
    other: JobQueue,
    claim: Claim,
    made: EnqueueResult,
    new: QueuedRun,
    job: SessionJob | None = None,
) -> Claim | None:
    """End a run, and look for the next one of the job, while another process creates one."""

    async def drive() -> Claim | None:
        await end(driver, claim, made)
        return None if job is None else await driver.claim_run(job)

    created, next_claim = await asyncio.gather(
        other.enqueue("local", new, LIMITS, claim=False), drive()
    )
    assert created.outcome is EnqueueOutcome.NEW
    return next_claim


async def end(driver: JobQueue, claim: Claim, made: EnqueueResult) -> None:
    assert made.run is not None
    run = msgspec.structs.replace(made.run, id=claim.run_id)
    await driver.end_run(claim, run, ending())


@pytest.mark.process
async def test_one_key_sent_to_several_processes_at_once_is_one_run(postgres_url: str) -> None:
    async with queues_of(postgres_url, 4) as (database, queues):
        async with asyncio.timeout(60):
            for number in range(20):
                results: Sequence[EnqueueResult] = await asyncio.gather(
                    *(
                        queue.enqueue(
                            "local",
                            entry(
                                f"r{number}-{index}",
                                Session(f"s{number}-{index}", "lead", "ann"),
                                creates_session=True,
                                key=f"key {number}",
                            ),
                            LIMITS,
                            claim=False,
                        )
                        for index, queue in enumerate(queues)
                    )
                )
                outcomes = [result.outcome for result in results]
                assert outcomes.count(EnqueueOutcome.NEW) == 1
                assert outcomes.count(EnqueueOutcome.EXISTING) == 3
                runs = {result.run.id for result in results if result.run is not None}
                assert len(runs) == 1
        count = "SELECT count(*) FROM runs"
        assert (await database.read(lambda c: c.execute(count).fetchone()))[0] == 20


async def test_a_run_that_is_watched_from_its_start_ends_with_its_last_record(
    place: Place,
) -> None:
    async with open_run_service(place) as house:
        replies = iter((calls(("work", {"what": "it"})), says("done")))
        house.answer = lambda agent, request: next(replies)
        view = await house.start("hello")
        watched = await house.records(view.run_id)
        stored = await house.store.records(view.run_id)
        assert [record.seq for record in watched] == sorted({record.seq for record in watched})
        assert watched == stored
        assert isinstance(watched[-1].event, RunFinished)
