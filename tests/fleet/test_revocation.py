"""A revoked edge: nothing is sent to it and nothing of it is taken, from that moment on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.orchestrator.fleet.approved_tools import ApprovedTools
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.trust.pairing import Devices
from tests.support.fleet import BrokerListener, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

NOW = 1_000.0


@asynccontextmanager
async def paired(folder: Path, *agents: str) -> AsyncGenerator[tuple[FleetHarness, Devices]]:
    """A fleet of edges that joined, and their devices as another process sees them."""
    own, other = Devices(folder / "pairing"), Devices(folder / "pairing")
    for agent_id in agents:
        await other.invite(agent_id, NOW)
    async with open_fleet(folder, *agents, refusal=ApprovedTools(own).refusal) as here:
        yield here, other


def commands_to(ear: BrokerListener, agent_id: str) -> list[str]:
    name = topic(agent_id, TopicKind.COMMANDS)
    return [
        msgspec.json.decode(message.payload)["command"]
        for message in ear.heard
        if message.topic == name
    ]


async def test_no_command_is_sent_to_an_edge_once_another_process_has_revoked_it(
    tmp_path: Path,
) -> None:
    async with paired(tmp_path, "pi", "desk") as (here, devices):
        assert not (await here.run_tool("mark", text="before")).error
        async with BrokerListener(here.broker) as ear:
            await devices.revoke("pi", NOW)

            refused = await here.run_tool("mark", text="after")
            assert refused.error is ErrorKind.PERMISSION_DENIED
            assert "edge 'pi' was revoked" in refused.text
            assert "evoclaw edges invite pi" in refused.text
            with pytest.raises(ToolFailure, match="revoked"):
                await here.orchestrator.query("pi", "ping")
            assert not (await here.run_tool("mark", agent_id="desk", text="desk")).error

            assert commands_to(ear, "pi") == []
            assert "tool" in commands_to(ear, "desk")
        assert here.marks.made == ["before", "desk"]


async def test_the_result_of_a_call_that_ran_when_the_edge_was_revoked_is_not_taken(
    tmp_path: Path,
) -> None:
    async with paired(tmp_path, "pi") as (here, devices):
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        await here.wait_for_state(request_id, "accepted")
        await devices.revoke("pi", NOW)
        receiver = here.orchestrator.report_receiver
        async with BrokerListener(here.broker) as ear:
            here.marks.gate.set()
            await until(lambda: ear.results_of(request_id) != [])
            await until(lambda: receiver.counts["refused"] > 0)
            assert await here.state(request_id) == "accepted"
            assert not here.orchestrator.fleet.is_online("pi")

            await here.orchestrator.requests.abandon("pi")
            async with asyncio.timeout(10):
                outcome = await asked
            assert outcome.error is ErrorKind.UNKNOWN
            assert "held a" not in outcome.text
            refused = receiver.counts["refused"]
            await until(lambda: receiver.counts["refused"] > refused)  # the edge reports it again
        assert (await here.row(request_id)).outcome is not None
        assert "held a" not in str((await here.row(request_id)).outcome)


async def test_a_call_that_waits_for_an_edge_ends_when_the_edge_is_revoked(tmp_path: Path) -> None:
    async with paired(tmp_path, "pi") as (here, devices):
        await here.pi.stop()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))
        request_id = new_id()
        asked = here.start_tool("mark", text="a", request_id=request_id, queue=60.0)
        await here.wait_for_state(request_id, "queued")
        await devices.revoke("pi", NOW)
        await here.orchestrator.requests.abandon("pi")
        async with asyncio.timeout(10):
            outcome = await asked
        assert outcome.error is ErrorKind.PERMISSION_DENIED
        assert "not sent: edge 'pi' was revoked" in outcome.text
        await here.pi.start()
        assert here.marks.made == []


async def test_while_it_is_unknown_who_was_revoked_nothing_is_sent(tmp_path: Path) -> None:
    async with paired(tmp_path, "pi") as (here, _):
        (tmp_path / "pairing" / "devices.json").write_text("{")

        refused = await here.run_tool("mark", text="a")
        assert "devices.json cannot be read" in refused.text
        assert here.marks.made == []


async def test_a_revoked_edge_that_joins_again_is_called_again(tmp_path: Path) -> None:
    async with paired(tmp_path, "pi") as (here, devices):
        await devices.revoke("pi", NOW)
        assert (await here.run_tool("mark", text="a")).error
        await here.pi.stop()

        await devices.invite("pi", NOW)
        await here.pi.start()
        await here.wait_online("pi")
        assert not (await here.run_tool("mark", text="b")).error
        assert here.marks.made == ["b"]
