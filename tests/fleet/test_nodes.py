"""The tool `nodes`: the fleet seen from a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ports import Deny
from evoclaw.core.tools import Call
from evoclaw.executors.devices import LocalDevice
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.orchestrator.agents.offer_steps import AgentTools
from evoclaw.orchestrator.fleet.edge_routes import FleetNodes
from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls
from evoclaw.orchestrator.sessions.steps import ForwardedTools
from evoclaw.tools.define import tool
from evoclaw.tools.device import DeviceSensors, device
from evoclaw.tools.nodes import Nodes, nodes
from tests.support.fleet import FleetHarness, new_id, open_fleet


@tool("shell")
async def blink(times: int) -> str:
    """Blink."""
    return f"blinked {times} times"


@tool("device")
async def notify(message: str) -> str:
    """Show a message."""
    return f"shown: {message}"


def machine(tmp_path: Path) -> LocalExecutor:
    """The tools of a device."""
    given = {DeviceSensors: LocalDevice(LocalProcesses(tmp_path))}
    return LocalExecutor([device, blink, notify], given=given)


async def use(here: FleetHarness, *, request_id: str = "", **arguments: JSON) -> ToolResult:
    orchestrator = here.orchestrator
    fleet = FleetNodes(orchestrator.fleet, orchestrator.edge_call(frozenset({"*"})))
    executor = LocalExecutor([nodes], given={Nodes: fleet})
    call = Call("c", nodes.tool, arguments, request_id or new_id(), 30)
    return await executor.execute(call, lambda text: None)


async def test_the_nodes_tool_lists_and_describes_edges(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk", executor=machine(tmp_path)) as here:
        listed = await use(here, action="list")
        assert [line.partition(":")[0] for line in listed.text.splitlines()] == ["desk", "pi"]
        assert "blink, device, notify" in listed.text or "device, blink, notify" in listed.text
        about = await use(here, action="describe", node="pi")
        assert 'type: "sensor"' in about.text
        assert about.details["answers questions"] is False


async def test_a_sensor_of_an_edge_is_read_by_its_name(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, executor=machine(tmp_path)) as here:
        result = await use(here, action="run", node="pi", what="memory")
        assert "MB free" in result.text
        assert (result.name, result.details["agent"]) == ("nodes", "pi")
        absent = await use(here, action="run", node="pi", what="gpio", params={"pin": 1})
        assert absent.error is ErrorKind.NOT_FOUND and "It has: cpu" in absent.text


async def test_any_tool_of_an_edge_can_be_run_and_runs_once_per_request(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        asked = new_id()
        for _ in range(2):
            result = await use(
                here, request_id=asked, action="run", node="pi", what="mark", params={"text": "a"}
            )
            assert result.text == "marked a"
        assert here.marks.made == ["a"]


async def test_a_notification_is_shown_on_the_edge(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, executor=machine(tmp_path)) as here:
        result = await use(here, action="notify", node="pi", message="dinner")
        assert result.text == "shown: dinner"


async def test_an_unknown_node_fails_with_the_names_of_online_nodes(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        for action in ("describe", "run", "notify"):
            with pytest.raises(
                ToolFailure, match="'attic' is not online. Devices online: pi"
            ) as failed:
                await use(here, action=action, node="attic")
            assert failed.value.kind is ErrorKind.AGENT_OFFLINE
        with pytest.raises(ToolFailure, match="Set `what`"):
            await use(here, action="run", node="pi")


async def test_a_tool_list_sees_the_tool_that_reads_a_sensor(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, executor=machine(tmp_path)) as here:
        forwarded = forwarded_calls(here.orchestrator.fleet)

        async def refused(what: str, *names: str) -> bool:
            arguments: dict[str, JSON] = {"action": "run", "node": "pi", "what": what}
            policy = ForwardedTools((AgentTools(frozenset(names)),), forwarded)
            call = Call("c", nodes.tool, arguments, new_id(), 30)
            verdicts = [await policy.judge(inner) for inner in (call, *forwarded(call))]
            # A call of an edge's own model is judged as the tool that it forwards to.
            assert len({isinstance(verdict, Deny) for verdict in verdicts}) == 1
            return isinstance(verdicts[0], Deny)

        assert await refused("memory", "nodes") and await refused("memory", "nodes", "blink")
        assert not await refused("memory", "nodes", "device")
        assert await refused("blink", "nodes", "device")
        assert not await refused("blink", "nodes", "blink")
