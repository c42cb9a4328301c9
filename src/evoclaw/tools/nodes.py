"""The tool `nodes`: lists the devices of the fleet and runs their tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call
from evoclaw.tools.define import tool


class Nodes(Protocol):
    """The devices of the fleet."""

    def names(self) -> Sequence[str]:
        """The devices that are online."""
        ...

    def describe(self, node: str, *, fully: bool) -> dict[str, JSON]:
        """A description of one device, short or in full."""
        ...

    async def run(
        self, node: str, action: str, params: dict[str, JSON], call: Call, progress: Progress
    ) -> ToolResult:
        """Run a tool of a device, once for this call."""
        ...


@tool("device", timeout=30, max_timeout=60, resources=("node",))
async def nodes(
    fleet: Nodes,
    call: Call,
    progress: Progress,
    action: Literal["list", "describe", "notify", "run"],
    node: str = "",
    what: Annotated[str, Meta(max_length=64)] = "",
    params: dict[str, JSON] | None = None,
    message: Annotated[str, Meta(max_length=500)] = "",
) -> ToolResult:
    """See the devices of the fleet and use what they have.

    `list` names them, `describe` tells what one is and has, `notify` shows a message to whoever is
    there, `run` asks for temperature, cpu, memory, disk, processes, camera or gpio, or uses any
    other tool that the device has.

    Args:
        fleet: The devices.
        call: This call.
        progress: Told the output as it comes.
        action: What to do.
        node: The device; needed for all but `list`.
        what: For `run`: what to look at, or the name of a tool of the device.
        params: For `run`: the arguments, such as {"pin": 17} for gpio.
        message: For `notify`: what to say.
    """
    if action == "list":
        online = [fleet.describe(name, fully=False) for name in fleet.names()]
        return call.ok("\n".join(map(_line, online)) or "No device is there.", nodes=list(online))
    if node not in fleet.names():
        online = ", ".join(fleet.names()) or "none"
        text = f"Device {node[:80]!r} is not there. There are: {online}."
        raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
    if action == "describe":
        about = fleet.describe(node, fully=True)
        return call.ok("\n".join(f"{key}: {value}" for key, value in about.items()), **about)
    if action == "notify":
        return await fleet.run(node, "notify", {"message": message}, call, progress)
    if not what:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "Say `what` to look at, or which tool to use.")
    return await fleet.run(node, what, params or {}, call, progress)


def _line(about: dict[str, JSON]) -> str:
    return f"{about['node']}: {about['summary']} ({about['tools']})"
