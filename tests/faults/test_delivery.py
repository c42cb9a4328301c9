"""Commands, results and acknowledgements that come twice, late, or not at all."""

from __future__ import annotations

import asyncio

from evoclaw.core.messages import ErrorKind
from evoclaw.transport.topics import TopicKind, topic
from tests.support.process_fleet import ProcessFleet, mark, new_id
from tests.support.programs.orchestrator_driver import Ask
from tests.support.waiting import until


async def test_fault_01_a_command_delivered_twice_runs_once(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        commands = topic("pi", TopicKind.COMMANDS)
        proxy.to_client.duplicate(fraction=1.0, topic=lambda name: name == commands)
        ids = [new_id() for _ in range(8)]
        results = await asyncio.gather(*(hub.mark(one) for one in ids))
        assert proxy.to_client.counts["duplicate"] >= 8
    assert [result.error for result in results] == [None] * 8
    assert [edge.marks(one) for one in ids] == [1] * 8


async def test_fault_01_a_command_repeated_by_another_orchestrator_is_not_run_again(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        first = await hub.mark(request_id)
        async with here.hub(1) as other:
            # It knows nothing of the first asking, and the first one has the result.
            await other.wait_online()
            again = await other.mark(request_id)
    assert first.error is None
    assert again.error is ErrorKind.UNKNOWN
    assert "acknowledged" in again.text
    assert edge.marks(request_id) == 1


async def test_fault_06_a_lost_report_is_sent_again_until_it_is_acknowledged(
    here: ProcessFleet,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await until(lambda: edge.marks(request_id) == 1)
        await hub.wait_for_state(request_id, "accepted")
        reports = topic("pi", TopicKind.REPORTS)
        proxy.to_broker.drop(next=1, topic=lambda name: name == reports)
        edge.open_gate()
        result = await asked
        assert proxy.to_broker.counts["drop"] == 1
        await until(lambda: not edge.unacknowledged(), say="the report is acknowledged")
    assert result.error is None
    assert edge.marks(request_id) == 1


async def test_fault_07_a_lost_acknowledgement_is_sent_again(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await until(lambda: edge.marks(request_id) == 1)
        await hub.wait_for_state(request_id, "accepted")
        commands = topic("pi", TopicKind.COMMANDS)
        proxy.to_client.drop(next=1, topic=lambda name: name == commands)
        edge.open_gate()
        result = await asked
        await until(lambda: proxy.to_client.counts["drop"] == 1)
        assert edge.unacknowledged() == [request_id]
        await until(lambda: not edge.unacknowledged(), say="the second one arrives")
        notes = await hub.store.late_outcomes(request_id)
    assert result.error is None
    assert notes == [], "the same report once more is no news"
    assert edge.marks(request_id) == 1


async def test_fault_16_a_command_older_than_its_deadline_is_not_run(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        assert (await hub.mark(new_id())).error is None, "it knows what time it is"
        proxy.freeze()
        request_id = new_id()
        command = mark(request_id)
        asked = asyncio.create_task(hub.ask(request_id, command=command, queue=0.5, timeout_ms=500))
        await asyncio.sleep(1.0)  # the fault itself: the link holds it longer than it may wait
        proxy.thaw()
        result = await asked
        await until(lambda: not edge.unacknowledged())
    assert result.error is ErrorKind.EXPIRED
    assert edge.marks(request_id) == 0


async def test_fault_16_a_slow_link_does_not_extend_a_deadline(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    proxy.delay(0.4)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        result = await hub.ask(request_id, command=mark(request_id), queue=0.3)
        await until(lambda: not edge.unacknowledged())
    assert result.error is ErrorKind.EXPIRED
    assert edge.marks(request_id) == 0


async def test_fault_06_unclaimed_results_do_not_delay_awaited_results(
    here: ProcessFleet,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy, concurrency=16)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        # An orchestrator that dies for ever, and leaves more results than are sent in one go.
        gone = await here.driver(1, at_once=100)
        await gone.start()
        gone.submit([Ask(new_id(), "pi", "read", {"path": "none"})])
        await until(lambda: len(gone.told) == 1)
        reports = topic("pi", TopicKind.REPORTS)
        proxy.to_broker.drop(fraction=1.0, topic=lambda name: name == reports)
        gone.submit(Ask(new_id(), "pi", "read", {"path": "none"}) for _ in range(80))
        await until(lambda: len(edge.unacknowledged()) == 80)
        await gone.kill()
        proxy.to_broker.clear()
        request_id = new_id()
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await hub.wait_for_state(request_id, "accepted")
        proxy.to_broker.drop(fraction=1.0, topic=lambda name: name == reports)
        edge.open_gate()
        await until(lambda: edge.states()[request_id] == "succeeded")
        await until(lambda: proxy.to_broker.counts["drop"] > 0)
        proxy.to_broker.clear()
        async with asyncio.timeout(10):
            result = await asked
    assert result.error is None
