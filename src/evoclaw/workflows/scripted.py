"""Scripted agents and tools, to test workflows without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from evoclaw.core.errors import AgentNotFound
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult
from evoclaw.core.tools import failure
from evoclaw.workflows.ports import (
    AgentCall,
    AgentRunOutcome,
    AgentRunResult,
    RetrySafety,
    StepWaiting,
    ToolOutcome,
    ToolRequest,
)

ScriptedReply: TypeAlias = str | AgentRunResult | Callable[[AgentCall], Awaitable[AgentRunOutcome]]
"""The answer of an agent: a fixed one, or a function of the request."""
ScriptedToolResult: TypeAlias = str | ToolResult | Callable[[ToolRequest], Awaitable[ToolOutcome]]


class ScriptedAgents:
    """Scripted agents; their runs outlive the caller, as real ones do."""

    def __init__(self, agents: Mapping[str, ScriptedReply]) -> None:
        self._agents = agents
        self.calls: list[AgentCall] = []
        """Every run that was started, once."""
        self.cancelled: list[str] = []
        self._runs: dict[tuple[str, str], AgentCall] = {}

    async def start(self, who: Principal, call: AgentCall) -> StepWaiting | None:
        """Start a run; idempotent by run id."""
        if call.agent not in self._agents:
            raise AgentNotFound(call.agent, tuple(self._agents))
        if (who.tenant, call.run_id) not in self._runs:
            self._runs[who.tenant, call.run_id] = call
            self.calls.append(call)
        return None

    async def result(self, tenant: str, run_id: str) -> AgentRunOutcome:
        """The scripted answer of the agent."""
        call = self._runs[tenant, run_id]
        reply = self._agents[call.agent]
        if isinstance(reply, str):
            return AgentRunResult(ok=True, output={"result": reply}, text=reply)
        return reply if isinstance(reply, AgentRunResult) else await reply(call)

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Record that a run was cancelled."""
        if (tenant, run_id) in self._runs:
            self.cancelled.append(run_id)


class ScriptedTools:
    """Scripted tools, which record every request."""

    def __init__(
        self, tools: Mapping[str, ScriptedToolResult], idempotent: Iterable[str] = ()
    ) -> None:
        """Choose the results of tools, and which tools are idempotent."""
        self._tools, self._idempotent = tools, frozenset(idempotent)
        self.calls: list[ToolRequest] = []
        """Every request, also those of unknown tools."""
        self.cancelled: list[str] = []

    def retry_safety(self, who: Principal, tool: str) -> RetrySafety:
        """Whether a tool is idempotent."""
        return RetrySafety(idempotent=tool in self._idempotent)

    async def execute(self, who: Principal, asked: ToolRequest) -> ToolOutcome:
        """Return the scripted result."""
        self.calls.append(asked)
        result = self._tools.get(asked.tool)
        if result is None:
            return failure(asked.request_id, asked.tool, ErrorKind.NOT_FOUND, "no such tool")
        if isinstance(result, str):
            return text_result(asked, result)
        return result if isinstance(result, ToolResult) else await result(asked)

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Record that a call was cancelled."""
        self.cancelled.append(request_id)


def text_result(asked: ToolRequest, text: str, **details: JSON) -> ToolResult:
    """A result with a text."""
    return ToolResult(asked.request_id, asked.tool, (TextBlock(text),), details=details)


async def never_finishes(_: object) -> AgentRunResult:
    """An agent whose run does not end by itself."""
    await asyncio.Event().wait()
    return AgentRunResult(ok=False)
