"""Which of an edge's tools may be used: those that a person has approved."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from evoclaw.core.errors import EvoClawError
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.transport.wire import tool_hash
from evoclaw.trust.pairing import Change, Device, Devices, DeviceState

logger = logging.getLogger(__name__)
LOOK = 1.0
"""Seconds between two looks for what people approved or revoked, here or elsewhere."""


class Permitted:
    """Asks again when an edge has tools that nobody has approved as they are now."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    async def __call__(self, agent_id: str, tools: Sequence[Tool]) -> tuple[Sequence[Tool], str]:
        """The tools that may be used, and what to tell of the others."""
        hashes = {tool.name: tool_hash(tool) for tool in tools}
        surface = await self._devices.surface(agent_id, hashes.items(), time.time())
        return (tools, "") if surface.change is Change.SAME else self.still(agent_id, tools)

    def still(self, agent_id: str, tools: Sequence[Tool]) -> tuple[Sequence[Tool], str]:
        """The same by what people said since; nothing new is put to them."""
        device = self._devices.get(agent_id)
        if device is not None and device.state is DeviceState.REVOKED:
            return (), f"this agent was revoked; `evoclaw agents invite {agent_id}` lets it back in"
        able = [tool for tool in tools if _may_use(device, tool)]
        names = ", ".join(sorted(tool.name for tool in tools if not _may_use(device, tool)))
        if not names and device is not None and device.state is DeviceState.APPROVED:
            return able, ""
        return able, f"not approved: {names}; approve with `evoclaw agents approve {agent_id}`"


def _may_use(device: Device | None, tool: Tool) -> bool:
    return device is not None and device.may_use(tool.name, tool_hash(tool))


@asynccontextmanager
async def following_approvals(
    devices: Devices, permitted: Permitted, fleet: Fleet, *, every: float = LOOK
) -> AsyncGenerator[None]:
    """While the block runs, have what people approve and revoke in force, whoever was told."""

    async def watch() -> None:
        while True:
            try:
                for agent_id in await devices.look():
                    device = devices.get(agent_id)
                    if device is not None and device.state is DeviceState.INVITED:
                        fleet.ask_again(agent_id)  # what it has now is what was invited
                    else:
                        fleet.judge_again(agent_id, permitted.still)
            except EvoClawError as problem:
                # Without the store nothing is sent to edges either.
                logger.warning("which edges were approved is not known: %s", problem)
            await asyncio.sleep(every)

    watching = asyncio.create_task(watch(), name="approvals of edges")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
