"""The status of background jobs on edges: from the store once they ended, else from the edge."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.commands import FINAL_STATES, CommandRow
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array, is_object
from evoclaw.core.tools import Call
from evoclaw.store.calls.commands import TenantCommands
from evoclaw.transport.outcomes import to_result
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import Command, Outcome


class JobNotFound(EvoClawError):
    """There is no such job of the tenant on that edge."""

    def __init__(self, agent_id: str, job_id: str) -> None:
        super().__init__(f"agent {agent_id!r} has no job {job_id[:200]!r}")


class EdgeJob(Struct, frozen=True):
    """The status of a background job on an edge."""

    job_id: str
    agent_id: str
    state: str
    """`running`, or how it ended; `unknown` also while its edge is unreachable."""
    ended: bool = False
    result: ToolResult | None = None
    details: dict[str, JSON] = {}
    """What its edge reports while it runs."""


async def find_job(
    commands: TenantCommands, requests: Requests, agent_id: str, job_id: str
) -> EdgeJob:
    """The status of a job; raise `JobNotFound` if the tenant has no such job on this edge."""
    row = await commands.get(job_id)
    if row is None or row.agent_id != agent_id:
        raise JobNotFound(agent_id, job_id)
    if row.outcome is not None:
        outcome = msgspec.json.decode(row.outcome, type=Outcome)
        result = to_result(outcome, "job", outcome.tool)
        state = "succeeded" if result.error is None else str(result.error)
        return EdgeJob(job_id, agent_id, state, ended=True, result=result)
    if row.state == "expired":
        return EdgeJob(job_id, agent_id, str(ErrorKind.EXPIRED), ended=True)
    return await _query_edge(requests, agent_id, job_id)


async def _query_edge(requests: Requests, agent_id: str, job_id: str) -> EdgeJob:
    command = Command("job", {"action": "read", "job_id": job_id}, f"job-{token_hex(8)}")
    try:
        outcome = await requests.query(agent_id, command)
    except ToolFailure:
        return EdgeJob(job_id, agent_id, "unknown")
    found = outcome.result if is_object(outcome.result) else {}
    state = found.get("state")
    if not isinstance(state, str):
        state = "queued" if outcome.error_type == ErrorKind.NOT_FOUND else "unknown"
    return EdgeJob(job_id, agent_id, state, details=found)


class FleetJobs:
    """The jobs of the fleet, for the tool `jobs`."""

    def __init__(self, commands_of: Callable[[str], TenantCommands], requests: Requests) -> None:
        """`commands_of` gives the commands of a tenant: a call sees only its tenant's jobs."""
        self._commands_of, self._requests = commands_of, requests

    async def list_running(self, node: str, call: Call) -> list[dict[str, JSON]]:
        """The unfinished jobs on one edge of the tenant that makes this call."""
        found = await self._query(node, {"action": "list"})
        listed = found.get("jobs")
        jobs = [job for job in listed if is_object(job)] if is_array(listed) else []
        own = await self._commands(call).known(str(job.get("job_id")) for job in jobs)
        return [job for job in jobs if job.get("job_id") in own]

    async def status(self, node: str, job_id: str, call: Call, *, wait: bool) -> ToolResult:
        """The status of a job, at once or when it has ended."""

        async def is_closed() -> bool:
            return (await self._row(node, job_id, call)).state in FINAL_STATES

        if wait:
            await self._requests.closed_waits.wait(job_id, is_closed)
        try:
            job = await find_job(self._commands(call), self._requests, node, job_id)
        except JobNotFound:
            raise _job_not_found(node, job_id) from None
        if job.result is not None:
            return replace(job.result, call_id=call.id, name=call.name)
        details = "".join(f"\n{key}: {value}" for key, value in job.details.items())
        return call.ok(f"Job {job_id} is {job.state}.{details}", state=job.state, ended=job.ended)

    async def cancel(self, node: str, job_id: str, call: Call) -> ToolResult:
        """Cancel a job; return its state."""
        await self._row(node, job_id, call)
        found = await self._query(node, {"action": "cancel", "job_id": job_id})
        state = found.get("state", "unknown")
        return call.ok(f"Job {job_id} is {state}.", **{str(key): found[key] for key in found})

    def _commands(self, call: Call) -> TenantCommands:
        return self._commands_of(call.context.principal.tenant)

    async def _row(self, node: str, job_id: str, call: Call) -> CommandRow:
        row = await self._commands(call).get(job_id)
        if row is None or row.agent_id != node:
            raise _job_not_found(node, job_id)
        return row

    async def _query(self, node: str, payload: dict[str, JSON]) -> dict[str, JSON]:
        outcome = await self._requests.query(node, Command("job", payload, f"job-{token_hex(8)}"))
        if outcome.status != "success":
            raise ToolFailure(ErrorKind.NOT_FOUND, outcome.error or "The device has no such job.")
        return outcome.result if is_object(outcome.result) else {}


def _job_not_found(node: str, job_id: str) -> ToolFailure:
    text = f"There is no job {job_id[:200]!r} of {node[:80]!r}; use `list` to see the running jobs."
    return ToolFailure(ErrorKind.NOT_FOUND, text)
