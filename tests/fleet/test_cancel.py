"""Calls that are no longer wanted: while they wait, run, or have ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.store.calls.journal import CallState
from evoclaw.tools.shell import bash
from evoclaw.transport.wire import Command, Outcome
from tests.support.fleet import (
    QUICK,
    BrokerListener,
    FleetHarness,
    new_id,
    open_fleet,
    tool_command,
)
from tests.support.processes import alive, unique_seconds
from tests.support.waiting import until

ONE = msgspec.structs.replace(QUICK, concurrency=1)


async def cancelled(here: FleetHarness, task: asyncio.Task[ToolResult]) -> None:
    """Give a call up, as a run does that was cancelled."""
    task.cancel()
    await asyncio.wait([task])


async def outcome(here: FleetHarness, request_id: str) -> Outcome:
    """How the store says that a call ended, when it has."""
    await here.wait_for_state(request_id, "settled")
    row = await here.row(request_id)
    assert row.outcome is not None
    return msgspec.json.decode(row.outcome, type=Outcome)


async def test_fault_19_a_call_cancelled_while_queued_on_the_edge_never_starts(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, limits=ONE) as here:
        here.publish_command(tool_command("hold", text="busy"))
        await here.marks.waiting.wait()
        request_id = new_id()
        asked = here.start_tool("mark", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        await cancelled(here, asked)
        assert (await outcome(here, request_id)).error_type == "cancelled"
        here.marks.gate.set()
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.in_flight == 0)
        assert here.marks.made == ["busy"]


async def test_fault_19_a_call_cancelled_while_running_ends_on_the_edge(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        await cancelled(here, asked)
        assert (await outcome(here, request_id)).error_type == "cancelled"
        edge = here.pi.edge
        assert edge is not None
        assert edge.calls.in_flight == 0
        row = await here.pi.journal.get(request_id)
        assert row is not None and row.state is CallState.CANCELLED


async def test_fault_19_cancelling_a_finished_call_reports_its_final_state(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        assert (await here.run_tool("mark", text="a", request_id=request_id)).error is None
        answer = await here.orchestrator.query("pi", "cancel", {"request_id": request_id})
        assert answer.result == {
            "request_id": request_id,
            "cancelled": False,
            "state": "succeeded",
        }
        before = len(here.link.sent)
        await here.orchestrator.requests.cancel("pi", request_id)
        assert (await outcome(here, request_id)).result == "marked a"
        said = [payload for _, payload in here.link.sent[before:]]
        assert not any(b'"command":"cancel"' in payload for payload in said), "there is no need"


async def test_fault_19_cancelling_an_unsent_call_closes_it_at_once(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, start=False) as here:
        request_id = new_id()
        asked = here.start_tool("mark", text="a", request_id=request_id, queue=30)
        await here.wait_for_state(request_id, "queued")
        await cancelled(here, asked)
        assert (await outcome(here, request_id)).error_type == "cancelled"
        await here.pi.start()
        await here.wait_online()
        assert (await here.run_tool("mark", text="b")).error is None
        assert here.marks.made == ["b"]


async def test_fault_19_a_cancel_that_arrives_before_its_command_prevents_the_call(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        request_id = new_id()
        lost = here.link.drop_next('"command":"tool"', count=1000)
        asked = here.start_tool("mark", text="a", request_id=request_id)
        await until(lambda: lost() > 0)
        await cancelled(here, asked)
        assert (await outcome(here, request_id)).error_type == "cancelled"
        sent = (await here.row(request_id)).payload
        here.publish_command(sent)  # it was on its way all the time
        await until(lambda: len(ear.results_of(request_id)) >= 2)
        await here.pi.crash()
        await here.pi.start()
        await here.wait_online()
        here.publish_command(sent)
        await until(lambda: len(ear.results_of(request_id)) >= 3)
        assert {end["error_type"] for end in ear.results_of(request_id)} == {"cancelled"}
        assert here.marks.made == []


async def test_fault_19_a_cancel_reaches_an_offline_edge_when_it_reconnects(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        here.pi.link.unplug()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))
        await cancelled(here, asked)
        await here.wait_for_state(request_id, "cancelling")
        edge = here.pi.edge
        assert edge is not None and edge.calls.in_flight == 1
        here.pi.link.plug()
        assert (await outcome(here, request_id)).error_type == "cancelled"
        await until(lambda: edge.calls.in_flight == 0)


async def test_fault_19_a_cancelled_undelivered_call_is_settled_on_reconnect(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        lost = here.link.drop_next('"command":"tool"', count=1000)
        asked = here.start_tool("mark", text="a", request_id=request_id, queue=30)
        await until(lambda: lost() > 0)
        here.pi.link.unplug()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))
        await cancelled(here, asked)
        await here.wait_for_state(request_id, "cancelling")
        here.pi.link.plug()
        assert (await outcome(here, request_id)).error_type == "cancelled"
        here.publish_command((await here.row(request_id)).payload)  # it was on its way all the time
        assert (await here.orchestrator.query("pi", "ping")).result["pong"] is True
        assert here.marks.made == []


async def test_fault_19_a_cancel_survives_an_orchestrator_restart(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        here.pi.link.unplug()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))
        await cancelled(here, asked)
        await here.wait_for_state(request_id, "cancelling")
        await here.restart()
        here.pi.link.plug()
        assert (await outcome(here, request_id)).error_type == "cancelled"


async def test_fault_19_a_lost_cancel_is_sent_again(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        lost = here.link.drop_next('"command":"cancel"', count=2)
        await cancelled(here, asked)
        assert (await outcome(here, request_id)).error_type == "cancelled"
        assert lost() == 2


async def test_a_call_that_was_given_up_is_cancelled_at_the_edges_next_hello(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        await here.orchestrator.requests.give_up("pi", request_id, "hold")
        assert (await asked).error is ErrorKind.UNKNOWN
        here.pi.link.drop()
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.in_flight == 0)


@pytest.mark.process
async def test_fault_20_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    nap = unique_seconds()
    script = f"sleep {nap} & setsid -f sleep {nap}; echo going; sleep {nap}"
    executor = LocalExecutor([bash], exec=LocalProcesses(tmp_path))
    async with open_fleet(tmp_path, executor=executor) as here:
        request_id = new_id()
        asked = here.start_tool("bash", command=script, timeout_ms=60_000, request_id=request_id)
        await until(lambda: len(alive(nap)) >= 3)
        await cancelled(here, asked)
        assert (await outcome(here, request_id)).error_type == "cancelled"
        assert alive(nap) == [], "dead before it is said"


async def test_fault_20_a_pending_cancel_is_sent_before_the_orchestrator_shuts_down(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        asked = here.start_tool("hold", text="a")
        await here.marks.waiting.wait()
        asked.cancel()
        await asyncio.wait([asked])
        await here.close()  # the cancel is its last word
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.in_flight == 0)


async def test_an_edge_shutdown_cancels_running_calls_and_keeps_queued_ones(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, limits=ONE) as here:
        running = here.start_tool("hold", text="runs")
        await here.marks.waiting.wait()
        request_id = new_id()
        waiting = here.start_tool("mark", text="waits", request_id=request_id, queue=20)
        await here.wait_for_state(request_id, "accepted")
        await here.pi.stop()
        assert (await running).error is ErrorKind.CANCELLED
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))
        await here.pi.start()
        assert (await waiting).text == "marked waits"
        assert here.marks.made == ["runs", "waits"]


async def test_a_cancel_requires_a_request_id(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        answer = await here.orchestrator.query("pi", "cancel", {})
        assert answer.error_type == "invalid_params"
        here.publish_command(Command("cancel", {"request_id": ""}, "c1"))
        assert (await here.run_tool("mark", text="b")).error is None
