"""Tools of the whole fleet: which edge a call goes to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Delay
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.fleet.fleet_executor import FleetExecutor
from evoclaw.tools.define import tool
from evoclaw.transport.wire import Heartbeat
from tests.support.fleet import EffectCounter, FleetHarness, new_id, open_fleet
from tests.support.waiting import until


def call(
    here: FleetHarness, executor: FleetExecutor, name: str, request_id: str = "", **given: str
) -> Call:
    offered = next(one for one in executor.tools() if one.name == name)
    return Call("c1", offered, dict(given), request_id or new_id(), offered.timeout)


async def run(executor: FleetExecutor, asked: Call) -> ToolResult:
    return await executor.execute(asked, lambda text: None)


def busy(here: FleetHarness, agent_id: str, calls: int) -> None:
    """Have an edge say how much it has to do."""
    member = here.orchestrator.fleet.member(agent_id)
    beat = Heartbeat(member.boot_id, member.counter, in_flight=calls)
    assert here.orchestrator.fleet.on_heartbeat(agent_id, beat)


async def test_a_call_goes_to_the_least_busy_edge_that_has_the_tool(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "a", "b", "c") as here:
        for name, calls in (("a", 3), ("b", 1), ("c", 2)):
            busy(here, name, calls)
        executor = here.orchestrator.delegated()
        result = await run(executor, call(here, executor, "mark", text="x"))
        assert result.details["agent"] == "b"


async def test_a_session_stays_with_its_edge_while_the_edge_is_online(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "a", "b") as here:
        executor = here.orchestrator.delegated()
        first = await run(executor, call(here, executor, "mark", text="1"))
        busy(here, "a", 9)
        second = await run(executor, call(here, executor, "mark", text="2"))
        assert (first.details["agent"], second.details["agent"]) == ("a", "a")
        other = here.orchestrator.delegated()
        assert (await run(other, call(here, other, "mark", text="3"))).details["agent"] == "b"
        await here.devices["a"].stop()
        await until(lambda: not here.orchestrator.fleet.is_online("a"))
        third = await run(executor, call(here, executor, "mark", text="4"))
        assert third.details["agent"] == "b"


async def test_a_resumed_call_goes_to_the_edge_that_had_it_before(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "a", "b") as here:
        executor = here.orchestrator.delegated()
        request_id = new_id()
        asked = call(here, executor, "mark", request_id, text="x")
        assert (await run(executor, asked)).details["agent"] == "a"
        await here.restart()
        await here.wait_online("a", "b")
        busy(here, "a", 9)
        again = here.orchestrator.delegated()
        asked = replace(call(here, again, "mark", request_id, text="x"), resumed=True)
        result = await run(again, asked)
        assert (result.text, result.details["agent"]) == ("marked x", "a")
        assert here.marks.made == ["x"]


async def test_an_edge_tool_with_the_offered_name_but_another_schema_is_not_called(
    tmp_path: Path,
) -> None:
    @tool("shell")
    async def mark(number: int) -> str:
        """Another tool of the same name."""
        return f"number {number}"

    async with open_fleet(tmp_path, "a", "b", start=False) as here:
        here.devices["b"].executor = LocalExecutor([mark])
        for device in here.devices.values():
            await device.start()
        await here.wait_online("a", "b")
        busy(here, "a", 9)
        executor = here.orchestrator.delegated()
        result = await run(executor, call(here, executor, "mark", text="x"))
        assert (result.text, result.details["agent"]) == ("marked x", "a")


async def test_edge_tools_whose_names_are_taken_are_not_offered(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        executor = here.orchestrator.delegated(excluded=["mark"])
        assert [one.name for one in executor.tools()] == ["hold", "look"]
        assert executor.tools() is executor.tools()


async def test_a_call_fails_as_agent_offline_when_no_edge_has_the_tool(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        executor = here.orchestrator.delegated()
        asked = call(here, executor, "mark", text="x")
        await here.pi.stop()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))
        with pytest.raises(ToolFailure) as raised:
            await run(executor, asked)
        assert raised.value.kind is ErrorKind.AGENT_OFFLINE
        assert EffectCounter().made == here.marks.made == []


async def test_a_call_runs_on_the_home_edge_although_others_are_less_busy(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "a", "b") as here:
        busy(here, "b", 9)
        executor = here.orchestrator.delegated(home="b")
        asked = call(here, executor, "mark", text="x")
        assert await executor.machine_of(asked) == "b"
        result = await run(executor, asked)
        assert (result.details["agent"], result.text) == ("b", "marked x")


async def test_a_tool_that_the_home_edge_lacks_runs_elsewhere_and_the_result_says_so(
    tmp_path: Path,
) -> None:
    @tool("shell", resources=())
    async def photograph() -> str:
        """Only this edge has it."""
        return "a picture"

    async with open_fleet(tmp_path, "a", "b", start=False) as here:
        here.devices["a"].executor = LocalExecutor([photograph])
        for device in here.devices.values():
            await device.start()
        await here.wait_online("a", "b")
        executor = here.orchestrator.delegated(home="b")
        result = await run(executor, call(here, executor, "photograph"))
        assert result.details["agent"] == "a"
        assert result.text.splitlines() == [
            "a picture",
            "[This ran on a, because b has no tool 'photograph'.]",
        ]


async def test_a_home_edge_that_is_offline_is_waited_for_and_no_other_edge_is_called(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, "a", "b") as here:
        executor = here.orchestrator.delegated(home="b")
        asked = call(here, executor, "mark", text="x")
        await here.devices["b"].stop()
        await until(lambda: not here.orchestrator.fleet.is_online("b"))
        reported: list[str] = []
        running = asyncio.create_task(executor.execute(asked, reported.append))
        await until(lambda: bool(reported))
        (delay,) = reported
        assert isinstance(delay, Delay)
        assert (delay.machine, 0 < delay.seconds <= 60) == ("b", True)
        await here.devices["b"].start()
        result = await running
        assert (result.details["agent"], result.text) == ("b", "marked x")
        assert [isinstance(text, Delay) and text.seconds for text in reported[1:]] == [0.0]


async def test_a_home_edge_whose_tools_are_not_approved_is_not_replaced_by_another(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, "a", "b") as here:
        executor = here.orchestrator.delegated(home="b")
        here.orchestrator.fleet.reapply_permit("b", lambda agent, tools: ((), "approve them first"))
        with pytest.raises(ToolFailure, match="approve them first"):
            await run(executor, call(here, executor, "mark", text="x"))
        assert here.marks.made == []


async def test_a_session_without_a_home_edge_stays_on_the_edge_of_its_first_call(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, "a", "b") as here:
        executor = here.orchestrator.delegated()
        first = await run(executor, call(here, executor, "mark", text="1"))
        busy(here, "a", 9)
        other = await run(executor, call(here, executor, "look"))
        assert (first.details["agent"], other.details["agent"]) == ("a", "a")
        await here.devices["a"].stop()
        await until(lambda: not here.orchestrator.fleet.is_online("a"))
        moved = await run(executor, call(here, executor, "mark", text="2"))
        assert moved.text.endswith("[This ran on b, because a is offline.]")
