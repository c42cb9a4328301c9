"""An orchestrator killed by SIGKILL anywhere, or asleep while another one takes over."""

from __future__ import annotations

import asyncio
import signal

import pytest

from evoclaw.transport.topics import TopicKind, topic
from tests.support.fleet_processes import DriverProcess, EdgeProcess
from tests.support.process_fleet import ProcessFleet, mark, run_id
from tests.support.programs.orchestrator_driver import Ask
from tests.support.waiting import until

POINTS = (
    "put:before:2",
    "put:amid:2",
    "put:after:2",
    "publish:before:2",
    "publish:amid:2",
    "publish:after:2",
    "settle:before:2",
    "settle:amid:2",
    "settle:after:2",
)
"""Before, amid and after: the command is stored, the command is published, the result is stored."""


async def test_fault_08_an_orchestrator_killed_at_any_point_loses_and_repeats_no_call(
    here: ProcessFleet,
) -> None:
    edge = await here.edge(concurrency=8)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        drivers = {await here.driver(1 + n): point for n, point in enumerate(POINTS)}
        await asyncio.gather(*(_survive(one, point, edge) for one, point in drivers.items()))


async def _survive(driver: DriverProcess, point: str, edge: EdgeProcess) -> None:
    run = run_id()
    ids = [f"{run}.{turn}.0.1" for turn in range(1, 4)]

    def calls(epoch: int) -> list[Ask]:
        return [Ask(one, edge.name, "bash", {"command": mark(one)}, epoch) for one in ids]

    await driver.start(dies=point)
    driver.submit(calls(1))
    assert await driver.wait_exit_and_output(60) == -signal.SIGKILL, point
    await driver.start()
    driver.submit(calls(2), last=True)
    assert await driver.wait_exit_and_output(60) == 0, point
    told = {one: driver.told[one].outcome for one in ids}
    assert told == dict.fromkeys(ids, "success"), point
    assert [edge.marks(one) for one in ids] == [1, 1, 1], point


async def test_fault_09_stored_unpublished_commands_are_published_after_the_restart(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    run = run_id()
    calls = [Ask(f"{run}.1.{n}.1", "pi", "bash", {"command": mark(f"c{n}")}) for n in range(5)]
    driver = await here.driver(1)
    await driver.start()
    driver.submit(calls)  # nobody is there: they are stored, and go nowhere
    async with here.hub(0, store="orchestrator-1") as hub:
        for call in calls:
            await hub.wait_for_state(call.id, "queued")
        await driver.kill()
        # Another process on the same store, in which nobody waits for these calls.
        await edge.start()
        for call in calls:
            await hub.wait_for_state(call.id, "settled")
    assert [edge.marks(f"c{n}") for n in range(5)] == [1] * 5


async def test_fault_10_a_stalled_orchestrator_is_fenced_after_a_takeover(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
    run = run_id()
    ids = [f"{run}.{turn}.0.1" for turn in range(5)]

    def calls(*numbers: int, epoch: int) -> list[Ask]:
        return [
            Ask(ids[n], "pi", "bash", {"command": mark(ids[n], hold=n == 1)}, epoch)
            for n in numbers
        ]

    old = await here.driver(1, keep_alive=1)
    new = await here.driver(2, store="orchestrator-1")
    await old.start()
    old.submit(calls(0, 1, epoch=1))
    await until(lambda: ids[0] in old.told)
    await until(lambda: edge.marks(ids[1]) == 1)
    old.signal(signal.SIGSTOP)
    await new.start()
    new.submit(calls(1, 2, epoch=2), last=True)
    await until(lambda: ids[2] in new.told)
    edge.open_gate()
    assert await new.wait_exit_and_output() == 0
    old.submit(calls(3, 4, epoch=1), last=True)
    old.signal(signal.SIGCONT)
    assert await old.wait_exit_and_output() == 0
    assert {one: new.told[one].outcome for one in ids[1:3]} == dict.fromkeys(ids[1:3], "success")
    assert [old.told[one].outcome for one in ids[3:]] == ["conflict", "conflict"]
    assert [edge.marks(one) for one in ids] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("delay", [0.05, 0.3])
async def test_fault_08_a_repeatedly_killed_orchestrator_runs_every_call_once(
    here: ProcessFleet, delay: float
) -> None:
    edge = await here.edge(concurrency=4)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
    run = run_id()
    ids = [f"{run}.{turn}.0.1" for turn in range(20)]
    driver = await here.driver(1)
    for epoch in range(1, 4):
        await driver.start()
        driver.submit(Ask(one, "pi", "bash", {"command": mark(one)}, epoch) for one in ids)
        await until(lambda: any(edge.marks(one) for one in ids))
        await asyncio.sleep(delay)  # the fault itself: it dies some time after the first mark
        await driver.kill()
    await driver.start()
    driver.submit((Ask(one, "pi", "bash", {"command": mark(one)}, 4) for one in ids), last=True)
    assert await driver.wait_exit_and_output(60) == 0
    assert {driver.told[one].outcome for one in ids} == {"success"}
    assert [edge.marks(one) for one in ids] == [1] * 20


async def test_fault_06_a_result_stored_by_another_process_reaches_the_waiting_caller(
    here: ProcessFleet,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge()
    async with here.hub(0, proxy=proxy) as hub, here.hub(1, store="orchestrator-0") as other:
        # As `evoclaw up` and `evoclaw run` do, they share a store, and both hear every report.
        await here.start_online(hub, edge)
        await other.wait_online()
        request_id = run_id() + ".1.0.1"
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await hub.wait_for_state(request_id, "accepted")
        proxy.refuse(True)
        proxy.cut()
        edge.open_gate()
        await other.wait_for_state(request_id, "settled")
        await until(lambda: not edge.unacknowledged())
        proxy.refuse(False)
        async with asyncio.timeout(15):
            result = await asked
    assert result.error is None
    assert edge.marks(request_id) == 1


async def test_two_orchestrators_of_one_account_do_not_end_each_others_connection(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub(0) as one, here.hub(0, store="another") as other:
        await here.start_online(one, edge)
        await other.wait_online()
        for hub in (one, other) * 3:
            assert (await hub.mark(run_id() + ".1.0.1")).error is None
        for hub in (one, other):
            assert hub.orchestrator.report_receiver.counts["disconnected"] == 0


async def test_wait_for_returns_an_edge_after_its_tools_are_known(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    adverts = topic("pi", TopicKind.CAPABILITIES)
    async with here.hub() as hub:
        # Held back for a moment, it comes after the hello.
        proxy.to_broker.reorder(fraction=1.0, topic=lambda name: name == adverts)
        await edge.start()
        member = await hub.orchestrator.wait_for("pi", 20)
        assert len(member.tools) > 0
