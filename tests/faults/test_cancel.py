"""Calls that are cancelled while they wait, run, or have ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from tests.support.process_fleet import ProcessFleet, mark, new_id
from tests.support.processes import alive, unique_seconds
from tests.support.waiting import until


async def _cancelled(asked: asyncio.Task[object]) -> None:
    asked.cancel()
    with suppress(asyncio.CancelledError):
        await asked


async def test_fault_19_a_cancelled_running_call_is_dead_within_two_seconds(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id, nap = new_id(), unique_seconds()
        # A child in the background, one in a session of its own, and one that will not listen.
        stubborn = f"(trap '' TERM; while :; do sleep {nap}; done) & "
        before = f"{stubborn} sleep {nap} & setsid -f sleep {nap}"
        command = mark(request_id, before=before, hold=True)
        asked = asyncio.create_task(hub.ask(request_id, command=command))
        await until(lambda: edge.marks(request_id) == 1)
        assert len(alive(nap)) >= 3
        began = time.monotonic()
        await _cancelled(asked)
        await until(lambda: not alive(nap), 5.0, "all that it started is dead")
        assert time.monotonic() - began < 2.0
        await until(lambda: edge.states()[request_id] == "cancelled")
        await until(lambda: not edge.unacknowledged())
    assert edge.marks(request_id) == 1


async def test_fault_19_a_cancelled_call_queued_on_the_edge_never_runs(here: ProcessFleet) -> None:
    edge = await here.edge(concurrency=1)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        first, second = new_id(), new_id()
        held = asyncio.create_task(hub.mark(first, hold=True))
        await until(lambda: edge.marks(first) == 1)
        waiting = asyncio.create_task(hub.mark(second))
        await until(lambda: edge.states().get(second) == "received")
        await _cancelled(waiting)
        await until(lambda: edge.states()[second] == "cancelled")
        edge.open_gate()
        assert (await held).error is None
        await hub.wait_for_state(second, "settled")
    assert (edge.marks(first), edge.marks(second)) == (1, 0)


async def test_fault_19_a_cancelled_unsent_call_is_closed_and_never_runs(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        request_id = new_id()
        waiting = asyncio.create_task(hub.mark(request_id))
        await hub.wait_for_state(request_id, "queued")
        await _cancelled(waiting)
        await here.start_online(hub, edge)
        assert (await hub.mark(new_id())).error is None
        row = await hub.store.get(request_id)
        assert row is not None
        assert row.settled_at is not None, "it no longer counts as waiting"
    assert edge.marks(request_id) == 0


async def test_fault_19_cancelling_a_finished_call_reports_its_final_state(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        assert (await hub.mark(request_id)).error is None
        told = await hub.orchestrator.query("pi", "cancel", {"request_id": request_id})
    assert told.result["cancelled"] is False
    assert told.result["state"] == "succeeded"


async def test_fault_19_a_cancel_reaches_a_disconnected_edge_when_it_reconnects(
    here: ProcessFleet,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id, nap = new_id(), unique_seconds()
        command = mark(request_id, before=f"setsid -f sleep {nap}", hold=True)
        asked = asyncio.create_task(hub.ask(request_id, command=command))
        await until(lambda: edge.marks(request_id) == 1)
        proxy.refuse(True)
        proxy.cut()
        await hub.presence("pi", False)
        await _cancelled(asked)
        await hub.wait_for_state(request_id, "cancelling")
        assert alive(nap)
        proxy.refuse(False)
        await hub.wait_for_state(request_id, "settled")
        assert not alive(nap)
    assert edge.states()[request_id] == "cancelled"
