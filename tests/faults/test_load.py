"""Much at once: commands for who is away, an orchestrator that sleeps, a storm, big results."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from evoclaw.core.messages import ErrorKind
from evoclaw.store.calls.commands import QueueFull
from evoclaw.tools.define import tool
from tests.support.light_edges import light_edge
from tests.support.process_fleet import ProcessFleet, mark, new_id, open_process_fleet
from tests.support.waiting import until

MANY = 150
"""More than an edge lets wait at once."""


async def test_fault_15_commands_queued_for_an_offline_edge_run_once_when_it_connects(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        ids, late = [new_id() for _ in range(MANY)], [new_id() for _ in range(10)]
        asked = [asyncio.create_task(hub.ask(one, command=mark(one), queue=60)) for one in ids]
        soon = [hub.ask(one, command=mark(one), queue=0.2, timeout_ms=100) for one in late]
        for one in ids:
            await hub.wait_for_state(one, "queued")
        expired = asyncio.gather(*soon)
        await asyncio.sleep(0.5)  # the fault itself: it is away for longer than these may wait
        await edge.start()
        results = await asyncio.gather(*asked)
        assert {result.error for result in await expired} == {ErrorKind.EXPIRED}
    assert Counter(result.error for result in results) == {None: MANY}
    assert [edge.marks(one) for one in ids] == [1] * MANY
    assert [edge.marks(one) for one in late] == [0] * 10


async def test_fault_15_commands_beyond_the_queue_cap_are_refused_at_once(
    here: ProcessFleet,
) -> None:
    async with here.hub() as hub:
        for number in range(3):
            await hub.store.put(f"r.{number}", "pi", "r", b"{}", time.time() + 60, cap=3)
        try:
            await hub.store.put("r.3", "pi", "r", b"{}", time.time() + 60, cap=3)
        except QueueFull:
            return
    raise AssertionError("the fourth was taken")


async def test_fault_21_a_stalled_orchestrator_loses_no_result_and_edge_memory_is_bounded(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub(keep_alive=1) as hub:
        await here.start_online(hub, edge)
        ids = [new_id() for _ in range(12)]
        before = edge.memory_mb()
        loud = mark("{}", after="yes 0123456789 | head -c 3000000")
        asked = [asyncio.create_task(hub.ask(one, command=loud.format(one))) for one in ids]
        await until(lambda: any(edge.marks(one) for one in ids))
        time.sleep(4)  # noqa: ASYNC251 - the fault itself: nothing else runs here meanwhile
        results = await asyncio.gather(*asked)
        await until(lambda: not edge.unacknowledged())
        assert edge.memory_mb() - before < 30
    assert [result.error for result in results] == [None] * 12
    assert [edge.marks(one) for one in ids] == [1] * 12


STORM = 200


async def test_fault_22_all_edges_reconnect_at_once_after_the_broker_was_killed(
    engine: str, tmp_path: Path
) -> None:
    names = [f"e{number}" for number in range(STORM)]
    async with (
        open_process_fleet(tmp_path, engine, anonymous=True) as here,
        AsyncExitStack() as stack,
    ):
        address = await here.address("anyone")
        hub = await stack.enter_async_context(here.hub())
        edges = [
            await stack.enter_async_context(light_edge(name, address, tmp_path)) for name in names
        ]
        fleet = hub.orchestrator.fleet
        await until(lambda: len(fleet.online()) == STORM, 60, "all are there")
        os.kill(here.broker.pid, signal.SIGKILL)
        await until(lambda: all(edge.counts["disconnected"] for edge in edges), 60)
        await until(lambda: hub.orchestrator.report_receiver.counts["disconnected"] > 0)
        await until(lambda: all(edge.parts.link.is_up for edge in edges), 90, "all are back")
        began = time.monotonic()
        answers = await asyncio.gather(*(hub.ping(name) for name in names))
        assert time.monotonic() - began < 30
    assert len(answers) == STORM


async def test_fault_23_a_result_of_two_megabytes_does_not_break_the_link(
    engine: str, tmp_path: Path
) -> None:
    @tool("shell")
    async def bash(command: str) -> str:
        """Say far too much: `command` once for each of two million letters."""
        return command[:1] * 2_000_000

    async with open_process_fleet(tmp_path, engine, anonymous=True) as here, here.hub() as hub:
        address = await here.address("anyone")
        async with light_edge("pi", address, tmp_path, tools=[bash]) as edge:
            await hub.wait_online()
            for letter in ("x", "\x01", "ü"):  # of one byte, of six when escaped, of two
                result = await hub.ask(new_id(), command=letter)
                assert len(result.text) < 300_000
                assert result.error in (None, ErrorKind.TOO_LARGE)
                assert result.text
            assert edge.counts["disconnected"] == 0, "no poison loop"
            assert hub.orchestrator.report_receiver.counts["disconnected"] == 0
            assert await hub.ping()


async def test_fault_23_an_edge_sends_the_start_and_end_of_a_long_result(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        big = "echo first; head -c 2000000 /dev/zero | tr '\\0' x; echo last"
        result = await hub.ask(new_id(), command=big)
        assert (await hub.mark(new_id())).error is None
    assert result.error is None
    assert "first" in result.text
    assert "last" in result.text
    assert len(result.text) < 200_000
