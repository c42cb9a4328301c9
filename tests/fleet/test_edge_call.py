"""`edge_call`: one tool to ask any edge anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.calls import prepare
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolCall, ToolResult
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.fleet import edge_call, edge_call_tool
from evoclaw.orchestrator.fleet.edge_call import EdgeCall
from evoclaw.orchestrator.fleet.forwarded_calls import only_reads
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.fleet import BrokerListener, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

ALL = frozenset({"*"})


async def ask(
    here: FleetHarness, *, held: frozenset[str] = ALL, request_id: str = "", **given: JSON
) -> ToolResult:
    """Call it as the loop would: checked against its schema first."""
    executor = here.orchestrator.edge_call(held)
    return await _execute(executor, given, request_id or new_id())


async def _execute(
    executor: EdgeCall, given: JSON, request_id: str, *, resumed: bool = False
) -> ToolResult:
    asked = ToolCall("c1", "edge_call", msgspec.json.encode(given).decode())
    tools = Toolset.of(executor.tools())
    call = prepare(asked, tools, request_id=request_id, resumed=resumed)
    if isinstance(call, ToolResult):
        return call
    try:
        async with asyncio.timeout(30):
            return await executor.execute(call, lambda text: None)
    except ToolFailure as problem:
        return call.failed(problem.kind, problem.message, **problem.details)


async def test_edge_call_is_offered_only_while_an_edge_is_online(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        executor = here.orchestrator.edge_call(ALL)
        assert list(executor.tools()) == []
        await here.devices["pi"].start()
        await here.wait_online("pi")
        (offered,) = executor.tools()
        assert executor.tools() is executor.tools()
        choices = offered.parameters["properties"]["agent_id"]["anyOf"]
        assert choices[0]["enum"] == ["pi", "type:sensor", "*"]
        await here.devices["desk"].start()
        await here.wait_online("desk")
        (offered,) = executor.tools()
        choices = offered.parameters["properties"]["agent_id"]["anyOf"]
        assert choices[1]["items"]["enum"] == ["desk", "pi"], "in a stable order"
        await here.devices["pi"].stop()
        await here.devices["desk"].stop()
        await until(lambda: not here.orchestrator.fleet.online())
        assert list(executor.tools()) == []


async def test_an_action_that_names_an_edge_tool_calls_that_tool(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        result = await ask(here, agent_id="pi", action="mark", params={"text": "a"})
        assert (result.text, result.name) == ("marked a", "edge_call")
        assert result.details["agent"] == "pi"
        assert any(b'"command":"tool"' in message.payload for message in ear.heard)


async def test_a_query_is_answered_by_the_edges_own_model_and_tools(tmp_path: Path) -> None:
    model = Scripted(calls(("look", {"text": "the kitchen"})), says("It is warm."))
    async with open_fleet(tmp_path, provider=model) as here:
        result = await ask(here, agent_id="pi", query="How is the kitchen?")
        assert result.text == "It is warm."
        assert here.marks.made == ["the kitchen"]


async def test_an_unknown_action_is_sent_to_the_edges_model_as_a_prompt(tmp_path: Path) -> None:
    model = Scripted(says("Done."))
    async with open_fleet(tmp_path, provider=model) as here:
        params = {"resolution": "640x480"}
        result = await ask(here, agent_id="pi", action="snapshot", params=params)
        assert result.text == "Done."
        said = model.requests[0].messages[-1]
        assert "Execute action: snapshot with params:" in str(said)
        assert '{"resolution":"640x480"}' in str(said)


async def test_a_query_to_an_edge_without_a_model_fails_with_its_tool_names(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        result = await ask(here, agent_id="pi", query="How warm is it?")
        assert result.error is ErrorKind.NOT_FOUND
        assert "mark, hold, look" in result.text


async def test_an_edge_call_without_action_or_query_is_invalid(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        result = await ask(here, agent_id="pi")
        assert result.error is ErrorKind.INVALID_PARAMS


@pytest.mark.parametrize(
    ("wanted", "who"),
    [
        ("*", ["desk", "kitchen", "pi"]),
        (["pi", "desk"], ["desk", "pi"]),
        (["pi"], ["pi"]),
        ("type:camera", ["kitchen"]),
        ("type:sensor", ["desk", "pi"]),
    ],
)
async def test_several_edges_are_called_concurrently_with_one_result_each(
    tmp_path: Path, wanted: JSON, who: list[str]
) -> None:
    async with open_fleet(tmp_path, "pi", "desk", "kitchen", start=False) as here:
        here.devices["kitchen"].agent_type = "camera"
        for device in here.devices.values():
            await device.start()
        await here.wait_online(*here.devices)
        result = await ask(here, agent_id=wanted, action="mark", params={"text": "a"})
        assert result.error is None
        assert result.details["agents"] == dict.fromkeys(who, "ok")
        assert result.text == "\n\n".join(f"[{name}]\nmarked a" for name in who)
        assert here.marks.made == ["a"] * len(who)


async def test_one_failing_edge_does_not_hide_the_results_of_others(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        await here.orchestrator.query("desk", "update_genome", {"genome": {"call_seconds": 0.2}})
        given: JSON = {"agent_id": "*", "action": "look", "params": {"text": "a", "hold": True}}
        task = asyncio.create_task(ask(here, **given))
        await until(lambda: len(here.marks.made) == 2)
        edge = here.devices["desk"].edge
        assert edge is not None
        await until(lambda: edge.calls.in_flight == 0)
        here.marks.gate.set()
        result = await task
        assert result.error is None
        assert result.details["agents"] == {"desk": "timeout", "pi": "ok"}
        assert "saw a" in result.text and "timed out" in result.text


async def test_edge_call_fails_when_all_edges_failed(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        result = await ask(here, agent_id="*", action="mark", params={"wrong": 1})
        assert result.error is ErrorKind.INVALID_PARAMS
        assert result.details["agents"] == {"desk": "invalid_params", "pi": "invalid_params"}


async def test_edge_call_requires_the_capabilities_of_the_remote_tool(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        held = frozenset({"device", "file_read"})
        allowed = await ask(here, held=held, agent_id="pi", action="look", params={"text": "a"})
        assert allowed.text == "saw a"
        denied = await ask(here, held=held, agent_id="pi", action="mark", params={"text": "b"})
        assert denied.error is ErrorKind.PERMISSION_DENIED
        assert "shell" in denied.text
        assert here.marks.made == ["a"]


async def test_calling_an_unknown_edge_fails_with_the_names_of_online_edges(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        executor = here.orchestrator.edge_call(ALL)
        executor.tools()
        call = here.call("mark", agent_id="gone", action="mark")
        with pytest.raises(ToolFailure) as raised:
            await executor.execute(call, lambda text: None)
        assert raised.value.kind is ErrorKind.AGENT_OFFLINE
        assert "desk, pi" in raised.value.message


async def test_the_requested_timeout_applies_to_the_remote_call(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        given: JSON = {"action": "hold", "params": {"text": "a"}, "timeout_ms": 300}
        result = await ask(here, agent_id="pi", **given)
        assert result.error is ErrorKind.TIMEOUT
        assert "0.3s" in result.text


async def test_a_call_resumed_after_a_restart_is_not_repeated_on_the_same_edge(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        request_id = new_id()
        given: JSON = {"agent_id": ["pi"], "action": "hold", "params": {"text": "a"}}
        first = asyncio.create_task(ask(here, request_id=request_id, **given))
        await here.marks.waiting.wait()
        await here.orchestrator.requests.close(0)
        first.cancel()
        await asyncio.wait([first])
        await here.restart()
        await here.wait_online("pi", "desk")
        given["agent_id"] = "*"  # as after a restart the fleet may be another
        executor = here.orchestrator.edge_call(ALL)
        again = asyncio.create_task(_execute(executor, given, request_id, resumed=True))
        await until(lambda: here.marks.made == ["a", "a"], say="the other one is asked as well")
        here.marks.gate.set()
        result = await again
        assert result.details["agents"] == {"desk": "ok", "pi": "ok"}
        assert here.marks.made == ["a", "a"], "and the first one not twice"


HOLD: dict[str, JSON] = {"agent_id": "pi", "action": "hold", "params": {"text": "a"}}


async def cut_off(here: FleetHarness) -> str:
    """Have a call begun whose orchestrator ends before it does."""
    request_id = new_id()
    first = asyncio.create_task(ask(here, request_id=request_id, **HOLD))
    await here.marks.waiting.wait()
    await here.orchestrator.requests.close(0)
    first.cancel()
    await asyncio.wait([first])
    return request_id


async def test_a_resumed_call_to_an_offline_edge_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_call, "QUEUE_TTL_S", 0.3)
    async with open_fleet(tmp_path, "pi", "desk") as here:
        request_id = await cut_off(here)
        await here.devices["pi"].stop()
        await here.restart()
        await here.wait_online("desk")
        executor = here.orchestrator.edge_call(ALL)
        resumed = prepare(
            ToolCall("c1", "edge_call", msgspec.json.encode(HOLD).decode()),
            Toolset.of(executor.tools()),
            request_id=request_id,
            resumed=True,
        )
        assert isinstance(resumed, Call), "what was begun did fit, whoever is listed now"
        with pytest.raises(ToolFailure) as unknown:
            await executor.execute(resumed, lambda text: None)
        with pytest.raises(ToolFailure) as fresh:
            await executor.execute(replace(resumed, request_id=new_id()), lambda text: None)
    assert (unknown.value.kind, fresh.value.kind) == (
        ErrorKind.UNKNOWN,
        ErrorKind.AGENT_OFFLINE,
    )


async def test_a_resumed_call_waits_until_the_tools_of_its_edge_are_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        request_id = await cut_off(here)
        await here.restart()
        await here.wait_online("pi", "desk")
        fleet, looked = here.orchestrator.fleet, asyncio.Event()
        find, member = fleet.find, fleet.member("pi")

        def seen(agent_id: str) -> Member | None:
            looked.set()
            return find(agent_id)

        monkeypatch.setattr(fleet, "find", seen)
        member.tools = Toolset()
        executor = here.orchestrator.edge_call(ALL)
        again = asyncio.create_task(_execute(executor, HOLD, request_id, resumed=True))
        async with asyncio.timeout(30):
            await looked.wait()
        fleet.reapply_permit("pi", lambda agent_id, tools: (tools, ""))
        here.marks.gate.set()
        assert (await again).error is None
        assert here.marks.made == ["a"], "it is fetched, not done again"


async def test_forty_edges_are_called_concurrently(tmp_path: Path) -> None:
    names = [f"edge-{n:02}" for n in range(40)]
    async with open_fleet(tmp_path, *names) as here:
        result = await ask(here, agent_id="*", action="mark", params={"text": "a"})
        assert list(result.details["agents"]) == names
        assert here.marks.made == ["a"] * 40


async def test_a_large_fleet_is_summarized_in_the_tool_description_and_callable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_call_tool, "MAX_LISTED_EDGES", 2)
    async with open_fleet(tmp_path, "a", "b", "c", "d") as here:
        (offered,) = here.orchestrator.edge_call(ALL).tools()
        assert "enum" not in msgspec.json.encode(offered.parameters).decode()
        assert "- b:" in offered.description and "- c:" not in offered.description
        assert 'and 2 more, of all 4: 4 of type "sensor"' in offered.description

        for whom, asked in (("d", 1), (["c", "d"], 2), ("type:sensor", 4), ("*", 4)):
            before = len(here.marks.made)
            result = await ask(here, agent_id=whom, action="mark", params={"text": "x"})
            assert result.error is None
            assert len(here.marks.made) - before == asked
        absent = await ask(here, agent_id="x", action="mark", params={"text": "x"})
        assert absent.error is ErrorKind.AGENT_OFFLINE
        assert "Online: a, b and 2 more." in absent.text


async def test_only_a_call_of_a_reading_tool_on_edges_that_have_it_counts_as_reading(
    tmp_path: Path,
) -> None:
    edge_call_tool, nodes_tool = Tool("edge_call", "", {}), Tool("nodes", "", {})
    async with open_fleet(tmp_path, "pi", "desk") as here:
        reads = only_reads(here.orchestrator.fleet)

        def of(tool: Tool = edge_call_tool, **given: JSON) -> bool:
            return reads(Call("1", tool, given, "run.1.0.1", 1.0))

        assert of(agent_id="pi", action="look", params={"text": "a"})
        assert of(agent_id=["pi", "desk"], action="look") and of(agent_id="*", action="look")
        assert of(nodes_tool, action="list") and of(nodes_tool, action="describe", node="pi")
        assert of(nodes_tool, action="run", node="pi", what="look")
        others: list[dict[str, JSON]] = [
            {"agent_id": "pi", "action": "mark"},
            {"agent_id": "*", "action": "mark"},
            {"agent_id": "pi", "query": "look"},
            {"agent_id": "pi", "action": "unknown"},  # its model would be asked
            {"agent_id": "nobody", "action": "look"},
            {"agent_id": ["pi", "nobody"], "action": "look"},
            {"agent_id": [], "action": "look"},
            {"action": "look"},
        ]
        for given in others:
            assert not of(edge_call_tool, **given), given
        assert not of(nodes_tool, action="notify", node="pi", message="hi")
        assert not of(nodes_tool, action="run", node="pi", what="mark")
        assert not of(Tool("bash", "", {}), command="ls")
