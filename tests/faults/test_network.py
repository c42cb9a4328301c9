"""Brokers that die, links that are half open, slow or lossy, and words that come late."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time

import pytest

from evoclaw.core.messages import ErrorKind
from evoclaw.orchestrator.fleet.fleet import PresenceChange
from tests.support.process_fleet import InProcessOrchestrator, ProcessFleet, mark, new_id
from tests.support.waiting import until


@pytest.mark.parametrize("wiped", [False, True])
async def test_fault_11_no_call_is_lost_when_the_broker_is_killed(
    here: ProcessFleet, engine: str, wiped: bool
) -> None:
    edge = await here.edge(concurrency=2)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        ids = [new_id() for _ in range(10)]
        asked = [asyncio.create_task(hub.mark(one, hold=True)) for one in ids]
        await until(lambda: sum(edge.marks(one) for one in ids) == 2)
        before = here.broker.pid
        os.kill(before, signal.SIGKILL)
        if wiped:
            shutil.rmtree(here.broker.folder / engine)
        edge.open_gate()
        more = [new_id() for _ in range(5)]
        asked += [asyncio.create_task(hub.mark(one)) for one in more]
        results = await asyncio.gather(*asked)
        assert here.broker.pid != before
        await until(lambda: not edge.unacknowledged())
    assert [result.error for result in results] == [None] * 15
    assert [edge.marks(one) for one in (*ids, *more)] == [1] * 15


KEEP_ALIVE = 3


async def test_fault_12_a_half_open_link_is_detected_and_restored(here: ProcessFleet) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy, keep_alive=KEEP_ALIVE)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await hub.wait_for_state(request_id, "accepted")
        proxy.freeze()
        edge.open_gate()
        began = time.monotonic()
        await hub.presence("pi", False)
        assert time.monotonic() - began < 2 * KEEP_ALIVE + 5.0, "and time for a busy machine"
        proxy.thaw()
        result = await asked
        await hub.presence("pi", True)
        assert (await hub.mark(new_id())).error is None
    assert result.error is None
    assert edge.marks(request_id) == 1


async def test_fault_12_on_a_slow_and_lossy_link_every_call_ends_and_none_runs_twice(
    here: ProcessFleet,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge(proxy=proxy)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        proxy.throttle(256_000 / 8)
        for way in (proxy.to_broker, proxy.to_client):
            way.drop(fraction=0.3)
            way.duplicate(fraction=0.1)
            way.reorder(fraction=0.1)
        ids = [new_id() for _ in range(10)]
        long = mark("{}", after="head -c 8000 /dev/zero | tr '\\0' x")
        results = await asyncio.gather(
            *(hub.ask(one, command=long.format(one), queue=20, timeout_ms=5000) for one in ids)
        )
        assert proxy.to_broker.counts["drop"] + proxy.to_client.counts["drop"] > 3
    typed = {None, ErrorKind.UNKNOWN, ErrorKind.EXPIRED}
    assert {result.error for result in results} <= typed
    for one, result in zip(ids, results, strict=True):
        assert edge.marks(one) <= 1
        assert result.error is not None or edge.marks(one) == 1
        assert result.error is not ErrorKind.EXPIRED or edge.marks(one) == 0
    assert [result.error for result in results].count(None) >= 5


async def test_fault_13_the_last_will_of_an_older_process_is_ignored(
    here: ProcessFleet,
) -> None:
    old = await here.edge()
    new = await here.edge(place="another disk")
    changes: list[PresenceChange] = []
    async with here.hub() as hub:
        hub.orchestrator.on_presence(changes.append)
        await here.start_online(hub, old)
        boot = hub.orchestrator.fleet.member("pi").boot_id
        old.signal(signal.SIGSTOP)
        # The broker ends the old connection for the new one, and says the old one's will.
        await new.start()
        await until(lambda: hub.orchestrator.fleet.member("pi").boot_id != boot)
        seen = len(changes)
        async with here.hub(1) as late:
            await late.wait_online()
            assert (await hub.mark(new_id())).error is None
            assert late.orchestrator.fleet.is_online("pi")
        await old.kill()
        assert (await hub.mark(new_id())).error is None
    assert PresenceChange("pi", False) not in changes[seen:], (
        "once there, it was never taken for gone"
    )
    assert changes[-1] == PresenceChange("pi", True)


async def test_fault_13_a_last_will_right_after_a_hello_marks_the_edge_offline(
    here: ProcessFleet,
) -> None:
    proxy = await here.proxy()
    edge = await here.edge()
    async with here.hub(proxy=proxy) as hub, here.hub(1) as witness:
        await here.start_online(hub, edge)
        await edge.kill()
        await hub.presence("pi", online=False)
        proxy.freeze()
        await edge.start()
        await witness.wait_online()
        await edge.kill()
        await witness.presence("pi", online=False)
        proxy.thaw()
        await until(lambda: hub.orchestrator.fleet.member("pi").boot_id == _boot(witness))
        await hub.presence("pi", online=False, seconds=10)


def _boot(hub: InProcessOrchestrator) -> str:
    return hub.orchestrator.fleet.member("pi").boot_id
