"""The tool `jobs`: calls that run on devices in the background."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from msgspec import Meta

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.tools.define import tool


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
    """See to jobs: calls that were begun on a device with `background` and go on by themselves.

    `list` names those that go on, `read` tells how one stands, `wait` waits until it has ended and
    gives its result, `cancel` ends it.

    Args:
        fleet: The jobs.
        call: This call.
        action: What to do.
        node: The device.
        job_id: The job; needed for all but `list`.
        timeout_ms: For `wait`: how many milliseconds at most, a day's worth at most.
    """
    if action == "list":
        found = await fleet.list_running(node, call)
        lines = [", ".join(f"{key}: {value}" for key, value in job.items()) for job in found]
        return call.ok("\n".join(lines) or "No job goes on there.", jobs=list(found))
    if action == "cancel":
        return await fleet.cancel(node, job_id, call)
    return await fleet.status(node, job_id, call, wait=action == "wait")
