"""Which of an edge's tools may be used: those that a person has approved."""

from __future__ import annotations

import time
from collections.abc import Sequence

from evoclaw.core.tools import Tool
from evoclaw.governance.pairing import Change, Devices
from evoclaw.transport.wire import tool_hash


class Permitted:
    """Asks again when an edge has tools that nobody has approved as they are now."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def __call__(self, agent_id: str, tools: Sequence[Tool]) -> tuple[Sequence[Tool], str]:
        """The tools that may be used, and what to tell of the others."""
        hashes = {tool.name: tool_hash(tool) for tool in tools}
        surface = self._devices.surface(agent_id, hashes.items(), time.time())
        if surface.change is Change.SAME:
            return tools, ""
        if surface.change is Change.REVOKED:
            return (), f"this agent was revoked; `evoclaw agents invite {agent_id}` lets it back in"
        device = self._devices.get(agent_id)
        able = [t for t in tools if device is not None and device.may_use(t.name, hashes[t.name])]
        names = ", ".join(surface.names)
        return able, f"not approved: {names}; approve with `evoclaw agents approve {agent_id}`"
