"""Workflows that start by themselves: each time once, whoever lives, dies, or looks twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from evoclaw.core.labels import Principal
from evoclaw.store.workflows.workflows import WorkflowStore
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.definition import ApprovalStep, Input, Schedule, ToolStep, Workflow
from evoclaw.workflows.schedules import Schedules
from evoclaw.workflows.scripted import ScriptedTools
from evoclaw.workflows.workflows import Workflows
from tests.support.workflows import Clock, ended, house, open_workflow_store

HOURLY = Workflow(
    "hourly",
    (ToolStep("t", tool="t", arguments={"for": "{{ run.scheduled_for }}"}),),
    inputs={"who": Input(default="x")},
    schedule=Schedule(cron="0 * * * *", user="cron"),
)
START = datetime(2026, 1, 1, 12, 30, tzinfo=UTC).timestamp()


def at(hour: int) -> float:
    return datetime(2026, 1, 1, hour, tzinfo=UTC).timestamp()


async def first(made: Workflows) -> str:
    """The id of the first one that starts by itself."""
    async with asyncio.timeout(20):
        while True:
            for view in await made.list("local"):
                return view.id
            await asyncio.sleep(0.01)


async def times(store: WorkflowStore, tenant: str = "local") -> list[str]:
    return [row.state for row in await store.of(tenant).list()]


async def test_a_workflow_starts_at_its_scheduled_time(tmp_path: Path) -> None:
    clock = Clock(START)
    tools = ScriptedTools({"t": "ok"})
    async with open_workflow_store(tmp_path / "workflows.db", clock) as store:
        await Schedules(store, Catalogue(workflows=[HOURLY]), clock).start_due()
    async with house(tmp_path, HOURLY, tools=tools, clock=clock) as made:
        (defined,) = await made.definitions()
        assert defined.next_at == at(13)
        clock.now = at(13) - 1
        assert await made.list("local") == []
        clock.now = at(13)
        view = await ended(made, await first(made))
        (defined,) = await made.definitions()

    assert view.scheduled_for == at(13) and view.user == "cron" and view.inputs == {"who": "x"}
    assert tools.calls[0].arguments == {"for": at(13)}
    assert defined.next_at == at(14)


async def test_missed_times_are_made_up_by_one_start(tmp_path: Path) -> None:
    clock = Clock(START)
    async with open_workflow_store(tmp_path / "db", clock) as store:
        schedules = Schedules(store, Catalogue(workflows=[HOURLY]), clock)
        await schedules.start_due()
        clock.now = at(20) + 60
        assert await schedules.start_due() == at(21)
        await schedules.start_due()
        (row,) = await store.list()

    assert b'"scheduled_for":%d' % at(13) in row.plan


async def test_two_processes_start_a_scheduled_workflow_once(tmp_path: Path) -> None:
    clock = Clock(START)
    async with (
        open_workflow_store(tmp_path / "db", clock) as one,
        open_workflow_store(tmp_path / "db", clock) as two,
    ):
        both = [Schedules(store, Catalogue(workflows=[HOURLY]), clock) for store in (one, two)]
        for hour in (13, 14, 15):
            await asyncio.gather(*(schedules.start_due() for schedules in both))
            clock.now = at(hour)
            await asyncio.gather(*(schedules.start_due() for schedules in both))
            for row in await one.list():
                await finish(one, row.id)
        assert len(await one.list()) == 3


async def finish(store: WorkflowStore, id_: str) -> None:
    from evoclaw.store.workflows.workflows import WorkflowUpdate

    await store.claim("test", 60, 100)
    row = await store.get(id_)
    if row is not None and row.ended_at is None:
        assert await store.append(id_, "test", row.head, (), WorkflowUpdate("succeeded", b"{}"))


async def test_a_running_workflow_is_not_started_again_unless_overlap_is_allowed(
    tmp_path: Path,
) -> None:
    for overlap, count in ((False, 1), (True, 3)):
        clock = Clock(START)
        schedule = Schedule(every_s=60, overlap=overlap)
        slow = Workflow("slow", (ApprovalStep("ok", message="?"),), schedule=schedule)
        async with open_workflow_store(tmp_path / f"db{count}", clock) as store:
            schedules = Schedules(store, Catalogue(workflows=[slow]), clock)
            for _ in range(4):
                await schedules.start_due()
                clock.now += 60
            assert len(await store.list()) == count


async def test_an_interval_schedule_keeps_its_phase(tmp_path: Path) -> None:
    clock = Clock(START)
    flow = Workflow("w", (ToolStep("t", tool="t"),), schedule=Schedule(every_s=100, overlap=True))
    async with open_workflow_store(tmp_path / "db", clock) as store:
        schedules = Schedules(store, Catalogue(workflows=[flow]), clock)
        assert await schedules.start_due() == START + 100
        clock.now += 345
        assert await schedules.start_due() == START + 400
        assert len(await store.list()) == 1


async def test_a_changed_schedule_restarts_and_a_disabled_one_stops(tmp_path: Path) -> None:
    clock = Clock(START)
    async with open_workflow_store(tmp_path / "db", clock) as store:

        async def look(schedule: Schedule) -> float | None:
            flow = replace(HOURLY, schedule=schedule)
            return await Schedules(store, Catalogue(workflows=[flow]), clock).start_due()

        assert await look(Schedule(cron="0 * * * *")) == at(13)
        assert await look(Schedule(cron="0 15 * * *")) == at(15)
        assert await look(Schedule(cron="0 15 * * *", timezone="Asia/Tokyo")) == at(6) + 86_400
        assert await look(Schedule(cron="0 * * * *", enabled=False)) is None
        clock.now = at(20)
        assert await look(Schedule(cron="0 * * * *")) == at(21)
        assert await store.list() == []


async def test_a_schedule_belongs_to_its_tenant(tmp_path: Path) -> None:
    clock = Clock(START)
    flow = replace(HOURLY, schedule=Schedule(every_s=10, tenant="acme", user="u"))
    async with open_workflow_store(tmp_path / "db", clock) as store:
        schedules = Schedules(store, Catalogue(workflows=[flow]), clock)
        await schedules.start_due()
        clock.now += 10
        await schedules.start_due()
        assert await times(store) == [] and await times(store, "acme") == ["queued"]
        (row,) = await store.of("acme").list()

    assert Principal("acme", "u").tenant in row.plan.decode()
