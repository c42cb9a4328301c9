"""Builds what serves the agents over A2A on the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.api.settings import ServerSettings
    from evoclaw.wiring.runtime import Runtime

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_a2a_mqtt(
    runtime: Runtime, server: ServerSettings, env: Mapping[str, str]
) -> AsyncGenerator[None]:
    """While the block runs, serve each agent on the broker, if `[a2a] mqtt` says so.

    The token of this machine is not accepted there: it need never leave the machine.
    """
    settings = runtime.settings.a2a
    if not settings.mqtt:
        yield
        return
    from evoclaw.orchestrator.a2a.cards import agent_path, http_interfaces
    from evoclaw.orchestrator.a2a.mqtt import A2aMqttAgent
    from evoclaw.orchestrator.a2a.settings import is_level
    from evoclaw.orchestrator.a2a.tasks import A2aParts
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.wiring.fleet import find_broker
    from evoclaw.wiring.http import access_for, image_problem_of

    database, address = runtime.stores.database, find_broker(runtime.settings.data, env)
    access = access_for(database, server)
    parts = A2aParts(
        runtime.runs, runtime.conversations, runtime.approvals, image_problem_of(runtime)
    )
    scheme = "mqtt" if address.tls is None else "mqtts"
    public = server.public_url.rstrip("/")
    serving: list[asyncio.Task[None]] = []
    for name, agent in runtime.agents.items():
        if not is_level(name):
            logger.warning("the agent %r is not on the broker: its name fits no topic", name)
            continue
        link = MqttLink(address, keep_alive=runtime.settings.broker.keep_alive_s)
        responder = A2aMqttAgent(
            settings,
            link,
            agent,
            parts,
            access,
            broker_url=f"{scheme}://{address.host}:{address.port}",
            http_interfaces=http_interfaces(public + agent_path(name)) if public else (),
            is_shared=database.dialect == "postgres",
        )
        task = asyncio.create_task(responder.run(), name=f"a2a {name}")
        task.add_done_callback(_report_failure)
        serving.append(task)
    try:
        yield
    finally:
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)


def _report_failure(serving: asyncio.Task[None]) -> None:
    if not serving.cancelled() and (problem := serving.exception()) is not None:
        logger.error(
            "%s: not on the broker any more until a restart: %s", serving.get_name(), problem
        )
