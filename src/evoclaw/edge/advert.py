"""The advert: a device's description of itself."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from evoclaw.core.tools import Tool
from evoclaw.core.version import VERSION
from evoclaw.edge.device import EdgeIdentity
from evoclaw.transport.wire import Advert, AdvertisedTool, tool_hash

_SUMMARIES = {
    "sensor": "sensor node — temperature, CPU/memory/disk stats, process monitoring, "
    "camera snapshot",
    "trader": "trading agent — market data, order execution, position management",
    "governance": "governance agent — on-chain voting, proposal management",
}
_SUMMARIES["monitor"] = _SUMMARIES["sensor"]


def default_summary(agent_id: str, agent_type: str) -> str:
    """The summary of a device without a configured one."""
    return f"{agent_id} {_SUMMARIES.get(agent_type, 'edge agent')}"


def advert(who: EdgeIdentity, tools: Sequence[Tool], *, has_model: bool) -> Advert:
    """The advert of a device with these tools."""
    return Advert(
        who.agent_id,
        who.summary or default_summary(who.agent_id, who.agent_type),
        agent_type=who.agent_type,
        os=platform.system().lower(),
        arch=platform.machine(),
        version=VERSION,
        llm=has_model,
        tools=[AdvertisedTool(tool.name, tool.version, tool_hash(tool)) for tool in tools],
    )
