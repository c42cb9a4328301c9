"""Calls that run on another machine: the tools of one edge as an executor.

The one bridge between rooms of this floor: it knows the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.transport.outcomes import to_result
from evoclaw.transport.requests import GRACE, Patience, Requests
from evoclaw.transport.wire import Command, Outcome, ToolPayload, as_payload, digest

ATTEMPTS = 2
"""How often a call that does no harm is tried while its outcome stays unknown."""
EXTRA = 2 * GRACE
"""Seconds beside queue and timeout before the loop itself gives up waiting for an edge."""


class Grants(Protocol):
    """Who signs what an edge is asked to do."""

    def __call__(self, agent_id: str, command: Command, call: Call | None) -> str:
        """The grant for one command; empty when none are given here."""
        ...


def ungranted(agent_id: str, command: Command, call: Call | None) -> str:
    """Where edges ask for no grants."""
    return ""


class EdgeExecutor:
    """The tools that one edge says it has, run there."""

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
        """What the edge offers now, with time for the way there and back."""
        known = self._known()
        if known is not self._seen:
            slack = self._queue + EXTRA
            self._tools = Toolset(replace(tool, slack=slack) for tool in known)
            self._seen = known
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Have the edge run it; ask once more for what does no harm and got lost."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                outcome = await self._ask(call, attempt, progress)
            except ToolFailure as lost:
                if attempt == ATTEMPTS or not _worth_another(call, lost.kind):
                    raise
                continue
            result = to_result(outcome, call.id, call.name)
            if attempt < ATTEMPTS and _worth_another(call, result.error):
                continue
            return replace(result, details={**result.details, "agent": self._agent_id})
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, call: Call, attempt: int, progress: Progress) -> Outcome:
        # The edge's journal knows the id of a call that was begun before a crash of ours.
        request_id = f"{call.request_id.rpartition('.')[0]}.{attempt}"
        asked = ToolPayload(call.name, call.arguments, call.timeout * 1000, call.tool.streams)
        command = Command(
            "tool",
            as_payload(asked),
            request_id,
            run_id=call.run_id,
            epoch=call.epoch,
            args_sha256=digest(call.arguments),
        )
        command = replace(command, grant=self._grants(self._agent_id, command, call))
        patience = Patience(call.timeout, self._queue)
        return await self._requests.ask(self._agent_id, command, patience, progress)


def _worth_another(call: Call, kind: ErrorKind | None) -> bool:
    return kind is ErrorKind.UNKNOWN and call.harmless
