"""The publisher for Home Assistant: expiring states, buttons of others, and changed settings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.core.messages import JSON
from evoclaw.governance.shared_stops import StopRegistry
from evoclaw.governance.stops import STOPS_FILE_NAME, StopFile, Stops
from evoclaw.orchestrator.home_assistant.publisher import HomeAssistantPublisher
from evoclaw.orchestrator.home_assistant.settings import HomeAssistantSettings
from evoclaw.transport.memory import MemoryLink
from tests.support.fleet import BrokerListener, FleetHarness, open_fleet
from tests.support.waiting import until

ON = HomeAssistantSettings(discovery=True, prefix="evoclaw", account="assist")
"""The prefix is one that `BrokerListener` hears."""
CONFIG, STATE = "evoclaw/device/evoclaw-edge-pi/config", "evoclaw/ha/pi/state"
PATIENCE = 20.0


@asynccontextmanager
async def publishing(
    here: FleetHarness, settings: HomeAssistantSettings = ON
) -> AsyncGenerator[HomeAssistantPublisher]:
    stops = StopFile(here.folder / STOPS_FILE_NAME)
    publisher = HomeAssistantPublisher(
        settings,
        MemoryLink(here.broker),
        here.orchestrator,
        folder=here.folder,
        agents=(),
        refusal=lambda _: "",
        stops=Stops(stops),
        stop_registry=StopRegistry(stops),
        refresh_interval_s=0.05,
    )
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.wait([task])


def states(ear: BrokerListener) -> list[JSON]:
    return [json.loads(one.payload) for one in ear.heard if one.topic == STATE and one.payload]


def configs(ear: BrokerListener) -> list[bytes]:
    return [one.payload for one in ear.heard if one.topic == CONFIG]


async def test_the_state_of_an_offline_edge_is_published_again_before_it_expires(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear, publishing(here):
        await until(lambda: any(state["online"] for state in states(ear)), PATIENCE)
        await here.pi.stop()
        await until(
            lambda: sum(not state["online"] for state in states(ear)) >= 3,
            PATIENCE,
            "the offline state comes again",
        )


async def test_retained_presses_other_accounts_and_unknown_edges_and_buttons_are_ignored(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        here.broker.publish("evoclaw/ha/pi/command/assist", b"stop", retain=True)
        async with publishing(here) as publisher:
            await until(lambda: bool(states(ear)), PATIENCE)
            here.broker.publish("evoclaw/ha/pi/command/ann", b"stop", retain=False)
            here.broker.publish("evoclaw/ha/other/command/assist", b"stop", retain=False)
            here.broker.publish("evoclaw/ha/pi/command/assist", b"shutdown", retain=False)
            expected = {"no button": 1, "unknown edge": 1, "unknown button": 1}
            await until(
                lambda: expected.items() <= publisher.counts.items(),
                PATIENCE,
                f"{publisher.counts}",
            )
        assert not (tmp_path / STOPS_FILE_NAME).exists()


async def test_without_the_account_the_device_is_removed_and_described_again_without_buttons(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        async with publishing(here):
            await until(lambda: bool(configs(ear)), PATIENCE)
        assert b"command_topic" in configs(ear)[-1]
        ear.heard.clear()
        async with publishing(here, HomeAssistantSettings(discovery=True, prefix="evoclaw")):
            await until(lambda: len(configs(ear)) >= 2, PATIENCE)
        assert configs(ear)[0] == b"", "Home Assistant keeps entities that a description leaves out"
        assert b"command_topic" not in configs(ear)[-1]
