"""Builds what shows the edges and agents to Home Assistant."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.wiring.store import Stores

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_home_assistant(
    orchestrator: Orchestrator,
    settings: EvoClawConfig,
    stores: Stores,
    env: Mapping[str, str],
    *,
    has_channels: bool,
) -> AsyncGenerator[None]:
    """While the block runs, publish for Home Assistant, or remove what was published before.

    Without a service, no channel takes messages for agents.
    """
    from evoclaw.orchestrator.home_assistant.announced import read_announced

    if not settings.home_assistant.discovery and read_announced(settings.data) is None:
        yield
        return
    from evoclaw.governance.stops import Stops
    from evoclaw.orchestrator.fleet.approved_tools import ApprovedTools
    from evoclaw.orchestrator.home_assistant.publisher import HomeAssistantPublisher
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.wiring.fleet import find_broker
    from evoclaw.wiring.oversight import stop_board, stop_files

    broker = settings.broker
    address = find_broker(settings.data, env)
    publisher = HomeAssistantPublisher(
        settings.home_assistant,
        MqttLink(address, keep_alive=broker.keep_alive_s, qos=broker.qos),
        orchestrator,
        folder=settings.data,
        agents=_agents(settings) if has_channels else (),
        refusal=ApprovedTools(stores.devices).refusal,
        stops=Stops(*stop_files(env)),
        stop_registry=stop_board(env, stores.database),
    )
    publishing = asyncio.create_task(publisher.run(), name="home assistant")
    publishing.add_done_callback(_report_failure)
    try:
        yield
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])


def _report_failure(publishing: asyncio.Task[None]) -> None:
    if not publishing.cancelled() and (problem := publishing.exception()) is not None:
        logger.error("Home Assistant sees no more changes until a restart: %s", problem)


def _agents(settings: EvoClawConfig) -> tuple[str, ...]:
    """The agents that take messages of Home Assistant's account over the MQTT channel."""
    from evoclaw.orchestrator.agents.definitions import agents_of

    account = settings.home_assistant.account
    channel = next((channel for channel in settings.channels if channel.kind == "mqtt"), None)
    if not account or channel is None or channel.user_of(account) is None:
        return ()
    known = agents_of(settings.agents, settings.run_defaults)
    return tuple(agent for agent in known if channel.agent in ("", agent))
