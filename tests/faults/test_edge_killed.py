"""An edge killed by SIGKILL before, while and after it does what it was asked to."""

from __future__ import annotations

import asyncio

from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.transport.topics import TopicKind, topic
from tests.support.fleet_processes import EdgeProcess
from tests.support.process_fleet import InProcessOrchestrator, ProcessFleet, mark, new_id
from tests.support.processes import alive, unique_seconds
from tests.support.waiting import until


async def test_fault_03_a_queued_call_runs_once_after_the_restart(here: ProcessFleet) -> None:
    edge = await here.edge(concurrency=1)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        first, second = new_id(), new_id()
        held = asyncio.create_task(hub.mark(first, hold=True))
        await until(lambda: edge.marks(first) == 1)
        waiting = asyncio.create_task(hub.mark(second))
        await until(lambda: edge.states().get(second) == "received")
        await edge.kill()
        await edge.start()
        assert (await waiting).error is None
        assert (await held).error is ErrorKind.UNKNOWN
    assert (edge.marks(first), edge.marks(second)) == (1, 1)


async def test_fault_03_a_queued_call_past_its_deadline_expires_after_the_restart(
    here: ProcessFleet,
) -> None:
    edge = await here.edge(concurrency=1)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        first, second = new_id(), new_id()
        held = asyncio.create_task(hub.mark(first, hold=True))
        await until(lambda: edge.marks(first) == 1)
        late = asyncio.create_task(hub.ask(second, command=mark(second), queue=1.0))
        await until(lambda: edge.states().get(second) == "received")
        await edge.kill()
        await asyncio.sleep(1.1)  # the fault itself: the device is off for longer than it may wait
        await edge.start()
        assert (await late).error is ErrorKind.EXPIRED
        assert (await held).error is ErrorKind.UNKNOWN
    assert (edge.marks(first), edge.marks(second)) == (1, 0)


async def test_fault_04_a_started_call_is_unknown_and_not_run_again(here: ProcessFleet) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id, nap = new_id(), unique_seconds()
        leftovers = f"sleep {nap} & setsid -f sleep {nap}"
        command = mark(request_id, before=leftovers, hold=True)
        asked = asyncio.create_task(hub.ask(request_id, command=command))
        await until(lambda: edge.marks(request_id) == 1)
        assert len(alive(nap)) >= 2
        await edge.kill()
        await until(lambda: not alive(nap), 2.0, "the old process's tree is dead")
        await edge.start()
        result = await asked
        assert (await hub.mark(new_id())).error is None, "it serves on"
    assert result.error is ErrorKind.UNKNOWN
    assert result.details["interrupted"] is True
    assert edge.marks(request_id) == 1


async def test_fault_04_an_idempotent_call_is_retried_by_the_orchestrator(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        (edge.workspace / "note").write_text("here\n")
        await edge.start(dies="receive:after:1")
        await hub.wait_online()
        asked = asyncio.create_task(hub.ask(new_id(), "read", path="note"))
        await edge.wait_exit()
        await edge.start()
        result = await asked
    assert result.error is None
    assert "here" in result.text


async def test_fault_05_a_stored_result_is_sent_after_the_restart(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await hub.wait_for_state(request_id, "accepted")
        reports = topic("pi", TopicKind.REPORTS)
        proxy.to_broker.drop(fraction=1.0, topic=lambda name: name == reports)
        edge.open_gate()
        await until(lambda: edge.states()[request_id] == "succeeded")
        await edge.kill()
        proxy.to_broker.clear()
        assert not asked.done()
        await edge.start()
        result = await asked
        await until(lambda: not edge.unacknowledged())
    assert result.error is None
    assert edge.marks(request_id) == 1


POINTS = {
    # Where the edge dies: how often the call may have happened, and what may be told.
    "receive:before:1": ({1}, {None}),
    "receive:amid:1": ({0, 1}, {None, ErrorKind.UNKNOWN}),
    "receive:after:1": ({0}, {ErrorKind.UNKNOWN}),
    "finish:before:1": ({1}, {ErrorKind.UNKNOWN}),
    "finish:amid:1": ({1}, {None, ErrorKind.UNKNOWN}),
    "finish:after:1": ({1}, {None}),
    "publish:before:1": ({1}, {None}),
    "publish:after:1": ({1}, {None}),
    "acknowledge:before:1": ({1}, {None}),
    "acknowledge:after:1": ({1}, {None}),
}


async def test_fault_04_an_edge_killed_at_any_point_runs_nothing_twice(
    here: ProcessFleet,
) -> None:
    edges = {point: await here.edge(f"pi-{n}") for n, point in enumerate(POINTS)}
    async with here.hub() as hub:
        for point, edge in edges.items():
            await edge.start(dies=point)
        results = await asyncio.gather(*(_survive(hub, edge) for edge in edges.values()))
    for (point, edge), (request_id, result) in zip(edges.items(), results, strict=True):
        marks, kinds = POINTS[point]
        assert edge.marks(request_id) in marks, point
        assert result.error in kinds, point
        assert not (result.error is None and edge.marks(request_id) != 1), point


async def _survive(hub: InProcessOrchestrator, edge: EdgeProcess) -> tuple[str, ToolResult]:
    """Ask for one call, start the edge again when it is dead, and see everything settled."""
    await hub.wait_online(edge.name)
    request_id = new_id()
    asked = asyncio.create_task(hub.mark(request_id, on=edge.name))
    await edge.wait_exit()
    await edge.start()
    result = await asked
    await until(lambda: not edge.unacknowledged())
    return request_id, result
