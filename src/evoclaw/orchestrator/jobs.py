"""Asking after a job: from the store when it has ended, else from the edge that runs it."""

from __future__ import annotations

from secrets import token_hex

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_object
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.outcomes import to_result
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import Command, Outcome


class NoJob(EvoClawError):
    """A job that was never begun from here, or not on that edge."""

    def __init__(self, agent_id: str, job_id: str) -> None:
        super().__init__(f"there is no job {job_id[:200]!r} of agent {agent_id!r}")


class Job(Struct, frozen=True):
    """How a job stands."""

    job_id: str
    agent_id: str
    state: str
    """`running`, or how it ended; `unknown` also while its edge cannot be asked."""
    ended: bool = False
    result: ToolResult | None = None
    details: dict[str, JSON] = {}
    """What its edge says of it while it runs."""


async def look_up(outbox: Outbox, requests: Requests, agent_id: str, job_id: str) -> Job:
    """How a job stands."""
    row = await outbox.get(job_id)
    if row is None or row.agent_id != agent_id:
        raise NoJob(agent_id, job_id)
    if row.outcome is not None:
        outcome = msgspec.json.decode(row.outcome, type=Outcome)
        result = to_result(outcome, "job", outcome.tool)
        state = "succeeded" if result.error is None else str(result.error)
        return Job(job_id, agent_id, state, ended=True, result=result)
    if row.state == "expired":
        return Job(job_id, agent_id, str(ErrorKind.EXPIRED), ended=True)
    return await _ask(requests, agent_id, job_id)


async def _ask(requests: Requests, agent_id: str, job_id: str) -> Job:
    asked = Command("job", {"action": "read", "job_id": job_id}, f"job-{token_hex(8)}")
    try:
        outcome = await requests.talk(agent_id, asked)
    except ToolFailure:
        return Job(job_id, agent_id, "unknown")
    found = outcome.result if is_object(outcome.result) else {}
    state = found.get("state")
    if not isinstance(state, str):
        state = "queued" if outcome.error_type == ErrorKind.NOT_FOUND else "unknown"
    return Job(job_id, agent_id, state, details=found)
