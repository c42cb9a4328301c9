"""An orchestrator killed by SIGKILL anywhere, or asleep while another one takes over."""

from __future__ import annotations

import asyncio
import signal

import pytest

from evoclaw.transport.topics import TopicKind, topic
from tests.support.fleet_processes import DriverProcess, EdgeProcess
from tests.support.process_fleet import Site, mark, run_id
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


async def test_fault_08_wherever_an_orchestrator_dies_no_call_is_lost_and_none_runs_twice(
    here: Site,
) -> None:
    edge = await here.edge(concurrency=8)
    async with here.hub() as hub:
        await here.online(hub, edge)
        drivers = {await here.driver(1 + n): point for n, point in enumerate(POINTS)}
        await asyncio.gather(*(_survive(one, point, edge) for one, point in drivers.items()))


async def _survive(driver: DriverProcess, point: str, edge: EdgeProcess) -> None:
    run = run_id()
    ids = [f"{run}.{turn}.0.1" for turn in range(1, 4)]

    def calls(epoch: int) -> list[Ask]:
        return [Ask(one, edge.name, "bash", {"command": mark(one)}, epoch) for one in ids]

    await driver.start(dies=point)
    driver.give(calls(1))
    assert await driver.gone(60) == -signal.SIGKILL, point
    await driver.start()
    driver.give(calls(2), last=True)
    assert await driver.gone(60) == 0, point
    told = {one: driver.told[one].outcome for one in ids}
    assert told == dict.fromkeys(ids, "success"), point
    assert [edge.marks(one) for one in ids] == [1, 1, 1], point


async def test_fault_09_what_was_stored_and_not_published_is_published_after_the_restart(
    here: Site,
) -> None:
    edge = await here.edge()
    run = run_id()
    calls = [Ask(f"{run}.1.{n}.1", "pi", "bash", {"command": mark(f"c{n}")}) for n in range(5)]
    driver = await here.driver(1)
    await driver.start()
    driver.give(calls)  # nobody is there: they are stored, and go nowhere
    async with here.hub(0, store="orchestrator-1") as hub:
        for call in calls:
            await hub.reached(call.id, "queued")
        await driver.kill()
        # Another process on the same store, in which nobody waits for these calls.
        await edge.start()
        for call in calls:
            await hub.reached(call.id, "settled")
    assert [edge.marks(f"c{n}") for n in range(5)] == [1] * 5


async def test_fault_10_an_orchestrator_that_slept_while_another_took_over_is_out(
    here: Site,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.online(hub, edge)
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
    old.give(calls(0, 1, epoch=1))
    await until(lambda: ids[0] in old.told)
    await until(lambda: edge.marks(ids[1]) == 1)
    old.signal(signal.SIGSTOP)
    await new.start()
    new.give(calls(1, 2, epoch=2), last=True)
    await until(lambda: ids[2] in new.told)
    edge.opened()
    assert await new.gone() == 0
    old.give(calls(3, 4, epoch=1), last=True)
    old.signal(signal.SIGCONT)
    assert await old.gone() == 0
    assert {one: new.told[one].outcome for one in ids[1:3]} == dict.fromkeys(ids[1:3], "success")
    assert [old.told[one].outcome for one in ids[3:]] == ["conflict", "conflict"]
    assert [edge.marks(one) for one in ids] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("delay", [0.05, 0.3])
async def test_fault_08_killed_at_any_time_and_again_every_call_still_happens_once(
    here: Site, delay: float
) -> None:
    edge = await here.edge(concurrency=4)
    async with here.hub() as hub:
        await here.online(hub, edge)
    run = run_id()
    ids = [f"{run}.{turn}.0.1" for turn in range(20)]
    driver = await here.driver(1)
    for epoch in range(1, 4):
        await driver.start()
        driver.give(Ask(one, "pi", "bash", {"command": mark(one)}, epoch) for one in ids)
        await until(lambda: any(edge.marks(one) for one in ids))
        await asyncio.sleep(delay)  # the fault itself: it dies some time after the first mark
        await driver.kill()
    await driver.start()
    driver.give((Ask(one, "pi", "bash", {"command": mark(one)}, 4) for one in ids), last=True)
    assert await driver.gone(60) == 0
    assert {driver.told[one].outcome for one in ids} == {"success"}
    assert [edge.marks(one) for one in ids] == [1] * 20


async def test_fault_06_a_result_that_another_process_stored_is_told_to_who_waits(
    here: Site,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge()
    async with here.hub(0, proxy=proxy) as hub, here.hub(1, store="orchestrator-0") as other:
        # As `evoclaw up` and `evoclaw run` do, they share a store, and both hear every report.
        await here.online(hub, edge)
        await other.there()
        request_id = run_id() + ".1.0.1"
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await hub.reached(request_id, "accepted")
        proxy.refuse(True)
        proxy.cut()
        edge.opened()
        await other.reached(request_id, "settled")
        await until(lambda: not edge.unacknowledged())
        proxy.refuse(False)
        async with asyncio.timeout(15):
            result = await asked
    assert result.error is None
    assert edge.marks(request_id) == 1


async def test_two_orchestrators_of_one_account_do_not_end_each_others_connection(
    here: Site,
) -> None:
    edge = await here.edge()
    async with here.hub(0) as one, here.hub(0, store="another") as other:
        await here.online(one, edge)
        await other.there()
        for hub in (one, other) * 3:
            assert (await hub.mark(run_id() + ".1.0.1")).error is None
        for hub in (one, other):
            assert hub.orchestrator.report_receiver.counts["disconnected"] == 0


async def test_an_edge_that_comes_while_it_is_waited_for_brings_its_tools(here: Site) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    adverts = topic("pi", TopicKind.CAPABILITIES)
    async with here.hub() as hub:
        # Held back for a moment, it comes after the hello.
        proxy.to_broker.reorder(fraction=1.0, topic=lambda name: name == adverts)
        await edge.start()
        member = await hub.orchestrator.wait_for("pi", 20)
        assert len(member.tools) > 0
