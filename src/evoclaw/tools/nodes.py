"""The tools `nodes` and `jobs`: devices of the fleet, their tools, and their background calls."""

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
    """List the devices of the fleet, and use their sensors and tools.

    `list` lists them, `describe` shows what a device is and has, `notify` shows a message to the
    people there, `run` reads temperature, cpu, memory, disk, processes, camera or gpio, or calls
    any other tool of the device.

    Args:
        fleet: The devices.
        call: This call.
        progress: Told the output as it comes.
        action: What to do.
        node: The device; needed for all but `list`.
        what: For `run`: the sensor to read, or the name of a tool of the device.
        params: For `run`: the arguments, such as {"pin": 17} for gpio.
        message: For `notify`: the text to show.
    """
    if action == "list":
        online = [fleet.describe(name, fully=False) for name in fleet.names()]
        return call.ok("\n".join(map(_line, online)) or "No device is online.", nodes=list(online))
    if node not in fleet.names():
        online = ", ".join(fleet.names()) or "none"
        text = f"Device {node[:80]!r} is not online. Devices online: {online}."
        raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
    if action == "describe":
        about = fleet.describe(node, fully=True)
        return call.ok("\n".join(f"{key}: {value}" for key, value in about.items()), **about)
    if action == "notify":
        return await fleet.run(node, "notify", {"message": message}, call, progress)
    if not what:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "Set `what` to a sensor or a tool.")
    return await fleet.run(node, what, params or {}, call, progress)


def _line(about: dict[str, JSON]) -> str:
    return f"{about['node']}: {about['summary']} ({about['tools']})"


class DeviceJobs(Protocol):
    """The background jobs on devices."""

    async def list_running(self, node: str, call: Call) -> list[dict[str, JSON]]:
        """The jobs of a device that have not ended and belong to the caller's tenant."""
        ...

    async def status(self, node: str, job_id: str, call: Call, *, wait: bool) -> ToolResult:
        """The status of a job; with `wait`, once it has ended."""
        ...

    async def cancel(self, node: str, job_id: str, call: Call) -> ToolResult:
        """Cancel a job; returns its last status."""
        ...


@tool("device", timeout=600, max_timeout=86_400, idempotent=True, resources=("job_id",))
async def jobs(
    fleet: DeviceJobs,
    call: Call,
    action: Literal["list", "read", "wait", "cancel"],
    node: str,
    job_id: Annotated[str, Meta(max_length=200)] = "",
    timeout_ms: Annotated[int, Meta(ge=1)] = 600_000,
) -> ToolResult:
    """Manage jobs: calls that were started on a device with `background`.

    `list` lists the running jobs, `read` shows the status of a job, `wait` waits for its end and
    returns its result, `cancel` stops it.

    Args:
        fleet: The jobs.
        call: This call.
        action: What to do.
        node: The device.
        job_id: The job; needed for all but `list`.
        timeout_ms: For `wait`: how many milliseconds to wait, one day at most.
    """
    if action == "list":
        found = await fleet.list_running(node, call)
        lines = [", ".join(f"{key}: {value}" for key, value in job.items()) for job in found]
        return call.ok("\n".join(lines) or "No job is running there.", jobs=list(found))
    if action == "cancel":
        return await fleet.cancel(node, job_id, call)
    return await fleet.status(node, job_id, call, wait=action == "wait")
