"""Permits the tools of an edge that a person has approved."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.transport.wire import tool_hash
from evoclaw.trust.pairing import Device, Devices, DeviceState, ToolsChange

logger = logging.getLogger(__name__)
APPROVAL_POLL_INTERVAL_S = 1.0
"""Between two checks for approvals and revocations, also of other processes."""


class ApprovedTools:
    """Permits approved tools; a changed tool needs a new approval."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    async def __call__(self, agent_id: str, tools: Sequence[Tool]) -> tuple[Sequence[Tool], str]:
        """The tools that may be used, and why the others may not; new tools await an approval."""
        hashes = {tool.name: tool_hash(tool) for tool in tools}
        surface = await self._devices.compare_tools(agent_id, hashes.items(), time.time())
        return (tools, "") if surface.change is ToolsChange.SAME else self.recheck(agent_id, tools)

    def refusal(self, agent_id: str) -> str:
        """Why an edge may take no part: it was revoked; empty if it may.

        Asked for every message, so that a revocation counts as soon as it is stored.
        """
        try:
            device = self._devices.get(agent_id)
        except ConfigError as problem:
            return f"it is unknown which edges were revoked: {problem}"
        if device is None or device.state is not DeviceState.REVOKED:
            return ""
        return _revoked_text(f"edge {agent_id!r}", agent_id)

    def recheck(self, agent_id: str, tools: Sequence[Tool]) -> tuple[Sequence[Tool], str]:
        """The same by the current approvals, without requesting new ones."""
        device = self._devices.get(agent_id)
        if device is not None and device.state is DeviceState.REVOKED:
            return (), _revoked_text("this edge", agent_id)
        usable = [tool for tool in tools if _may_use(device, tool)]
        names = ", ".join(sorted(tool.name for tool in tools if not _may_use(device, tool)))
        if not names and device is not None and device.state is DeviceState.APPROVED:
            return usable, ""
        return usable, f"not approved: {names}; approve with `evoclaw edges approve {agent_id}`"


def _revoked_text(edge: str, agent_id: str) -> str:
    return f"{edge} was revoked; `evoclaw edges invite {agent_id}` lets it back in"


def _may_use(device: Device | None, tool: Tool) -> bool:
    return device is not None and device.may_use(tool.name, tool_hash(tool))


@asynccontextmanager
async def watch_approvals(
    devices: Devices,
    approved: ApprovedTools,
    fleet: Fleet,
    *,
    abandon: Callable[[str], Awaitable[None]],
    interval_s: float = APPROVAL_POLL_INTERVAL_S,
) -> AsyncGenerator[None]:
    """While the block runs, apply approvals and revocations, also those of other processes.

    `abandon` closes the commands of an edge that was revoked.
    """

    async def watch() -> None:
        while True:
            try:
                for agent_id in await devices.refresh():
                    device = devices.get(agent_id)
                    if device is not None and device.state is DeviceState.INVITED:
                        fleet.refetch_tools(agent_id)  # the tools that it has now count as invited
                        continue
                    fleet.reapply_permit(agent_id, approved.recheck)
                    if device is not None and device.state is DeviceState.REVOKED:
                        # Its account was deleted; a broker that restarts sends no will for it.
                        fleet.mark_offline(agent_id)
                        await abandon(agent_id)
            except EvoClawError as problem:
                # Without the store, nothing is sent to edges either.
                logger.warning("reading the approvals of edges failed: %s", problem)
            await asyncio.sleep(interval_s)

    watching = asyncio.create_task(watch(), name="edge approvals")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
