"""Several orchestrators on one PostgreSQL: who is silent is replaced, and may not disturb."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

import psycopg
import pytest
from msgspec.structs import replace
from psycopg_pool import AsyncConnectionPool

from evoclaw.core.errors import ConfigError
from evoclaw.core.events import RunFinished, StopReason
from evoclaw.core.replay import Replay
from evoclaw.orchestrator.runs.runs import RunStatus
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import Database, Schema, StoreError
from evoclaw.store.databases.export_import import export_to, import_from
from evoclaw.store.runs import job_worker
from evoclaw.store.runs.job_queue import JobQueue
from evoclaw.store.runs.job_worker import create_tables
from tests.support.databases import Place
from tests.support.postgres import Postgres, why_no_postgres
from tests.support.runs import QUICK, SCHEMAS, Gate, RunServiceHarness, open_run_service

pytestmark = pytest.mark.process

SLOW = replace(QUICK, lease_s=600)
"""Of one that says seldom that it lives, and to whom nobody is silent."""
SILENCE = "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour' WHERE id = ?"


@pytest.fixture(name="shared")
def _shared(postgres_url: str) -> Place:
    return Place(postgres_url, f"test_{token_hex(6)}")


class LosingPool(AsyncConnectionPool[Any]):
    """Loses a cancellation, as a pool does before Python 3.12 if a connection opens just then."""

    connecting: ClassVar[asyncio.Event]

    async def wait(self, timeout: float = 30.0) -> None:
        await super().wait(timeout)
        self.connecting.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_an_orchestrator_that_is_stopped_while_its_worker_connects_ends(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    LosingPool.connecting = asyncio.Event()
    monkeypatch.setattr(job_worker, "AsyncConnectionPool", LosingPool)
    async with asyncio.timeout(60), open_run_service(shared):
        await LosingPool.connecting.wait()


def queue(house: RunServiceHarness) -> JobQueue:
    found = house.runs._queue  # pyright: ignore[reportPrivateUsage]
    assert isinstance(found, JobQueue)
    return found


async def ask(
    house: RunServiceHarness, statement: str, *values: object
) -> list[tuple[object, ...]]:
    rows = await house.store.database.read(lambda c: c.execute(statement, values).fetchall())
    return [tuple(row) for row in rows]


async def tell(house: RunServiceHarness, statement: str, *values: object) -> None:
    await house.store.database.write(lambda c: c.execute(statement, values))


async def wait_for_answer(
    house: RunServiceHarness, statement: str, expected: list[tuple[object, ...]]
) -> None:
    """Wait until a question is answered so."""

    async def so() -> bool:
        return await ask(house, statement) == expected

    async with asyncio.timeout(30):
        await house.runs.hub.wait_until(("", ""), so)


async def whole(house: RunServiceHarness, run_id: str) -> None:
    """What is kept of a run is what one driver at a time would have made."""
    records = await house.store.records(run_id)
    assert sum(isinstance(record.event, RunFinished) for record in records) == 1
    assert [record async for record in Replay(records).records()] == records


async def test_a_stalled_driver_is_replaced_and_frees_no_session_when_it_wakes(
    shared: Place,
) -> None:
    async with open_run_service(shared, settings=SLOW) as old:
        sleeper = old.gate = Gate()
        first = await old.start("one")
        await sleeper.next()
        second = await old.start("two", session=first.session_id)
        await tell(old, SILENCE, queue(old).worker_id)
        async with open_run_service(shared) as new:
            gate = new.gate = Gate()
            assert await gate.next() == "lead: one", "taken over, by the server's clock"
            # The one that slept wakes up: it is refused, and the session is not free by that.
            sleeper.wide = True
            sleeper.open("lead: one")
            async with asyncio.timeout(30):
                while old.runs.active_count:
                    await old.runs.hub.wait_for_change()
            assert (
                await new.wait_for_state(second.run_id, RunStatus.QUEUED)
            ).state is RunStatus.QUEUED
            assert gate.came.empty(), "the next run of the session has not begun"
            gate.open("lead: one")
            gate.wide = True
            for view, text in ((first, "lead: one"), (second, "lead: two")):
                assert (await new.wait_ended(view.run_id)).text == text
                await whole(new, view.run_id)
            stored = await new.store.run(first.run_id)
            assert stored is not None
            assert stored.epoch == 2


async def test_an_orchestrator_whose_worker_row_was_deleted_registers_again(shared: Place) -> None:
    async with open_run_service(shared, settings=replace(QUICK, lease_s=0.3)) as house:
        await house.wait_ended((await house.start("one")).run_id)
        before = queue(house).worker_id
        await tell(house, "DELETE FROM procrastinate_workers")

        async def anew() -> bool:
            return queue(house).worker_id not in (0, before)

        async with asyncio.timeout(30):
            await house.runs.hub.wait_until(("", ""), anew)
        assert (await house.wait_ended((await house.start("two")).run_id)).text == "lead: two"


async def left_behind(house: RunServiceHarness) -> str:
    """A run whose job was fetched by one that is silent since."""
    view = await house.start("hello")
    await tell(house, "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now())")
    ((worker,),) = await ask(house, "SELECT max(id) FROM procrastinate_workers")
    await tell(house, "SELECT id FROM procrastinate_fetch_job_v2(NULL, ?)", worker)
    await tell(house, SILENCE, worker)
    return view.run_id


async def test_two_orchestrators_requeue_a_stalled_job_once(shared: Place) -> None:
    async with open_run_service(shared):
        pass  # the tables are there
    async with (
        open_run_service(shared, serve=False) as one,
        open_run_service(shared, serve=False) as two,
    ):
        run_id = await left_behind(one)
        looks = [queue(house).reclaim_abandoned(lambda _: False) for house in (one, two, one, two)]
        await asyncio.gather(*looks)
        assert await ask(one, "SELECT attempts FROM procrastinate_jobs") == [(1,)]
    async with open_run_service(shared) as house:
        assert (await house.wait_ended(run_id)).text == "lead: hello"


async def test_a_queued_run_without_a_job_is_found_and_driven(shared: Place) -> None:
    async with open_run_service(shared):
        pass  # the tables are there
    async with open_run_service(shared, serve=False) as idle:
        view = await idle.start("hello")
        assert await ask(idle, "SELECT count(*) FROM procrastinate_jobs") == [(1,)]
        await tell(idle, "DELETE FROM procrastinate_jobs")  # as if it had died before
    async with open_run_service(shared) as house:
        assert (await house.wait_ended(view.run_id)).text == "lead: hello"


async def test_a_job_that_was_fetched_but_never_started_is_requeued(shared: Place) -> None:
    async with open_run_service(shared):
        pass
    async with open_run_service(shared, serve=False) as idle:
        run_id = await left_behind(idle)
    async with open_run_service(shared) as house:
        assert (await house.wait_ended(run_id)).text == "lead: hello"


async def test_runs_released_by_a_draining_orchestrator_are_taken_over_at_once(
    shared: Place,
) -> None:
    async with open_run_service(shared, settings=SLOW) as one:
        gate = one.gate = Gate()
        first = await one.start("one")
        await gate.next()
        second = await one.start("two", session=first.session_id)
        async with open_run_service(shared, settings=SLOW) as other:
            assert await one.runs.drain(0) == 1
            assert (await other.wait_ended(second.run_id)).text == "lead: two"
            assert (await other.wait_ended(first.run_id)).text == "lead: one"
            after = await one.store.run(first.run_id)
            assert after is not None
            assert (after.epoch, one.runs.active_count) == (2, 0)


async def test_finished_jobs_leave_no_rows(shared: Place) -> None:
    async with open_run_service(shared) as house:
        for number in range(5):
            view = await house.start(f"m{number}")
            await house.wait_ended((await house.start("more", session=view.session_id)).run_id)
        for table in ("jobs", "events"):
            await wait_for_answer(house, f"SELECT count(*) FROM procrastinate_{table}", [(0,)])
        assert await ask(house, "SELECT count(*) FROM procrastinate_workers") == [(1,)]
    async with open_run_service(shared, serve=False) as idle:
        assert await ask(idle, "SELECT count(*) FROM procrastinate_workers") == [(0,)]


async def test_a_tenant_with_many_runs_does_not_delay_another_on_any_orchestrator(
    shared: Place,
) -> None:
    from tests.orchestrator.test_runs import OTHERS

    settings = replace(QUICK, at_once=2, per_tenant=1)
    async with (
        open_run_service(shared, settings=settings) as one,
        open_run_service(shared, settings=settings) as two,
    ):
        gate = one.gate = two.gate = Gate()
        for number in range(6):
            await one.start(f"ours {number}")
        assert {await gate.next(), await gate.next()} == {"lead: ours 0", "lead: ours 1"}
        assert (one.runs.active_count, two.runs.active_count) == (1, 1), "one of a tenant in each"
        view = await two.start("theirs", who=OTHERS)
        assert await gate.next() == "lead: theirs", "there is room for another one"
        gate.wide = True
        for number in range(2):
            gate.open(f"lead: ours {number}")
        gate.open("lead: theirs")
        assert (await two.wait_ended(view.run_id, "other")).stop is StopReason.COMPLETED
        for found in await one.runs.list("local"):
            assert (await one.wait_ended(found.run_id)).stop is StopReason.COMPLETED


async def test_job_tables_of_a_newer_version_are_refused(shared: Place) -> None:
    async with open_run_service(shared) as house:
        await tell(house, "UPDATE parts SET version = 999 WHERE name = 'procrastinate'")
        with pytest.raises(ConfigError, match="newer version"):
            await create_tables(house.store.database)


async def test_missing_permission_to_create_job_tables_is_reported(shared: Place) -> None:
    database = await shared.open(*SCHEMAS)
    await database.close()
    poor = f"poor_{token_hex(4)}"
    all_tables = f"ALL TABLES IN SCHEMA {shared.schema} TO {poor}"
    with psycopg.connect(str(shared.at), autocommit=True) as connection:
        for statement in (
            f"CREATE ROLE {poor} LOGIN",
            f"GRANT USAGE ON SCHEMA {shared.schema} TO {poor}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {all_tables}",
        ):
            connection.execute(statement.encode())
    place = Place(str(shared.at).replace("tester@", f"{poor}@"), shared.schema)
    with pytest.raises(ConfigError, match="permission denied"):
        async with open_run_service(place):
            pass


async def test_a_missing_procrastinate_package_is_reported_with_what_to_install(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "procrastinate", None)
    monkeypatch.delitem(sys.modules, "evoclaw.store.runs.job_worker")
    with pytest.raises(ConfigError, match=r"pip install 'evoclaw\[postgres\]'"):
        async with open_run_service(shared):
            pass


async def test_queued_runs_are_exported_and_imported_without_job_tables(
    shared: Place, tmp_path: Path
) -> None:
    async with open_run_service(shared):
        pass  # the tables are there
    file, other = tmp_path / "all.zip", Place(shared.at, f"test_{token_hex(6)}")
    async with open_run_service(shared, serve=False) as idle:
        view = await idle.start("hello")
        await export_to(file, idle.store.database, SCHEMAS)
    async with open_run_service(other, serve=False) as idle:
        await import_from(file, idle.store.database, SCHEMAS)
    async with open_run_service(other) as house:
        assert (await house.wait_ended(view.run_id)).text == "lead: hello"


class Lasting(Place):
    """What was committed there outlives a crash."""

    async def open(
        self,
        *schemas: Schema,
        durable: bool = True,
        patience: float = 20.0,
        cipher: BlobCipher | None = None,
    ) -> Database:
        return await super().open(*schemas, durable=durable, patience=patience, cipher=cipher)


@pytest.fixture(name="server")
async def _server() -> AsyncGenerator[Postgres]:
    if reason := why_no_postgres():
        pytest.skip(reason)
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


async def test_runs_survive_a_postgres_crash_and_restart(server: Postgres) -> None:
    place = Lasting(server.url)
    async with open_run_service(place) as one, open_run_service(place) as two:
        gate = one.gate = two.gate = Gate()
        views = [await one.start(f"m{number}") for number in range(4)]
        for _ in views:
            await gate.next()
        server.stop(signal.SIGQUIT)
        server.start()
        gate.wide = True
        for number in range(4):
            gate.open(f"lead: m{number}")
        for number, view in enumerate(views):
            assert (await two.wait_ended(view.run_id)).text == f"lead: m{number}"
            await whole(two, view.run_id)
        for house in (one, two):
            assert (await house.wait_ended((await house.start("more")).run_id)).text == "lead: more"


class Hasty(Lasting):
    """Who asks there while the server is away is told so at once."""

    async def open(
        self,
        *schemas: Schema,
        durable: bool = True,
        patience: float = 0.1,
        cipher: BlobCipher | None = None,
    ) -> Database:
        return await super().open(*schemas, durable=durable, patience=patience, cipher=cipher)


async def test_workers_get_time_for_a_heartbeat_after_a_postgres_outage(server: Postgres) -> None:
    place = Hasty(server.url)
    async with open_run_service(place):
        pass  # the tables are there
    async with open_run_service(place, serve=False, settings=SLOW) as idle:
        run_id = await left_behind(idle)
        server.stop(signal.SIGQUIT)
        with pytest.raises(StoreError):
            await queue(idle).reclaim_abandoned(lambda _: False)
        server.start()
        for _ in range(3):
            await queue(idle).reclaim_abandoned(lambda _: False)
        find = "SELECT attempts FROM procrastinate_jobs"
        assert await ask(idle, find) == [(0,)], "nobody is taken for dead yet"
        async with open_run_service(place, serve=False, settings=SLOW) as other:
            await queue(other).reclaim_abandoned(
                lambda _: False
            )  # to this one the server was never away
            assert await ask(other, find) == [(1,)]
    async with open_run_service(place) as house:
        assert (await house.wait_ended(run_id)).text == "lead: hello"
