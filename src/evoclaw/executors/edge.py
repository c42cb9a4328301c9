"""`EdgeExecutor`: the tools of one edge as an executor; calls run on that machine.

The only module of this package that uses the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from evoclaw.core.encoding import json_digest
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.tracing import current_traceparent
from evoclaw.transport.outcomes import to_result
from evoclaw.transport.requests import OUTCOME_GRACE_S, CommandTimeouts, Requests
from evoclaw.transport.wire import (
    DEFAULT_JOB_TIMEOUT_S,
    MAX_JOB_TIMEOUT_S,
    Command,
    Outcome,
    ToolPayload,
    as_payload,
)

MAX_READ_ONLY_ATTEMPTS = 2
"""How often a read-only call is tried while its outcome stays unknown."""
JOB_START_TIMEOUT_S = 20.0
"""Seconds in which an edge must confirm that it received a job."""
EDGE_GRACE_S = 2 * OUTCOME_GRACE_S
"""Seconds beside queue and timeout before the loop itself gives up waiting for an edge."""
Grants: TypeAlias = Callable[[str, Command, Call | None], str]
"""Signs a command for an edge: the grant for an agent, a command and its call, if any."""


def ungranted(agent_id: str, command: Command, call: Call | None) -> str:
    """An empty grant, for edges that require none."""
    return ""


class EdgeExecutor:
    """The tools that one edge offers, run on that edge."""

    def __init__(
        self,
        agent_id: str,
        tools: Callable[[], Sequence[Tool]],
        requests: Requests,
        *,
        grants: Grants = ungranted,
        queue: float = 60.0,
    ) -> None:
        """Let a call wait for its edge up to `queue` seconds."""
        self._agent_id, self._known, self._requests = agent_id, tools, requests
        self._grants, self._queue = grants, queue
        self._seen: Sequence[Tool] | None = None
        self._tools = Toolset()

    def tools(self) -> Sequence[Tool]:
        """The tools the edge offers now, with time for the round trip."""
        known = self._known()
        if known is not self._seen:
            slack = self._queue + EDGE_GRACE_S
            self._tools = Toolset((replace(tool, slack=slack) for tool in known), like=known)
            self._seen = known
        return self._tools

    async def machine_of(self, call: Call) -> str:
        """The edge."""
        return self._agent_id

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run the call on the edge; retry once if it is safe to repeat and its outcome was lost."""
        outcome = await self._ask(call, call.request_id, progress)
        for _ in range(1, MAX_READ_ONLY_ATTEMPTS):
            if not _worth_another(call, outcome):
                break
            call = _next_attempt(call)
            outcome = await self._ask(call, call.request_id, progress)
        result = to_result(outcome, call.id, call.name)
        return replace(result, details={**result.details, "agent": self._agent_id})

    async def start(
        self, call: Call, *, seconds: float = DEFAULT_JOB_TIMEOUT_S, idle: float | None = None
    ) -> ToolResult:
        """Run the call on the edge as a job; return when the job has started, with its id."""
        payload = self._payload(call) | {"background": True}
        payload["timeout_ms"] = min(seconds, MAX_JOB_TIMEOUT_S) * 1000
        payload["idle_ms"] = None if idle is None else idle * 1000
        outcome = await self._send(call, call.request_id, payload, JOB_START_TIMEOUT_S)
        result = to_result(outcome, call.id, call.name)
        return replace(result, details={**result.details, "agent": self._agent_id})

    async def _ask(self, call: Call, request_id: str, progress: Progress) -> Outcome:
        # The edge's journal knows the request id of a call from before an orchestrator crash.
        return await self._send(call, request_id, self._payload(call), call.timeout, progress)

    def _payload(self, call: Call) -> dict[str, JSON]:
        payload = ToolPayload(call.name, call.arguments, call.timeout * 1000, call.tool.streams)
        return as_payload(payload)

    async def _send(
        self,
        call: Call,
        request_id: str,
        payload: dict[str, JSON],
        seconds: float,
        progress: Progress | None = None,
    ) -> Outcome:
        principal = call.context.principal
        command = Command(
            "tool",
            payload,
            request_id,
            run_id=call.run_id,
            epoch=call.epoch,
            args_sha256=json_digest(call.arguments),
            queue_ttl_ms=round(self._queue * 1000),
            tenant="" if principal == LOCAL_PRINCIPAL else principal.tenant,
            traceparent=current_traceparent(),
            label=call.context.label,
        )

        def sign(command: Command) -> Command:
            grant = self._grants(self._agent_id, command, call)
            return replace(command, grant=grant) if grant else command

        patience = CommandTimeouts(seconds, self._queue)
        return await self._requests.ask(self._agent_id, command, patience, progress, sign=sign)


def _worth_another(call: Call, outcome: Outcome) -> bool:
    return outcome.error_type == ErrorKind.UNKNOWN and call.safe_to_repeat


def _next_attempt(call: Call) -> Call:
    """The same call under the request id of its next attempt, so that no journal answers it."""
    stem, _, attempt = call.request_id.rpartition(".")
    if not stem or not attempt.isdigit():
        return call
    return replace(call, request_id=f"{stem}.{int(attempt) + 1}")
