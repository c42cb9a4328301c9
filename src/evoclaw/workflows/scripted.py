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
    AgentAnswer,
    AgentCall,
    Done,
    Ended,
    Nature,
    ToolAsked,
    Waiting,
)

Says: TypeAlias = str | AgentAnswer | Callable[[AgentCall], Awaitable[Ended]]
"""The answer of an agent: a fixed one, or a function of the request."""
Does: TypeAlias = str | ToolResult | Callable[[ToolAsked], Awaitable[Done]]


class ScriptedAgents:
    """Scripted agents; their runs outlive the caller, as real ones do."""

    def __init__(self, agents: Mapping[str, Says]) -> None:
        self._agents = agents
        self.calls: list[AgentCall] = []
        """Every run that was started, once."""
        self.cancelled: list[str] = []
        self._runs: dict[tuple[str, str], AgentCall] = {}

    async def begin(self, who: Principal, call: AgentCall) -> Waiting | None:
        """Start a run; idempotent by run id."""
        if call.agent not in self._agents:
            raise AgentNotFound(call.agent, tuple(self._agents))
        if (who.tenant, call.run_id) not in self._runs:
            self._runs[who.tenant, call.run_id] = call
            self.calls.append(call)
        return None

    async def result(self, tenant: str, run_id: str) -> Ended:
        """The scripted answer of the agent."""
        call = self._runs[tenant, run_id]
        reply = self._agents[call.agent]
        if isinstance(reply, str):
            return AgentAnswer(ok=True, output={"result": reply}, text=reply)
        return reply if isinstance(reply, AgentAnswer) else await reply(call)

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Record that a run was cancelled."""
        if (tenant, run_id) in self._runs:
            self.cancelled.append(run_id)


class ScriptedTools:
    """Scripted tools, which record every request."""

    def __init__(self, tools: Mapping[str, Does], harmless: Iterable[str] = ()) -> None:
        """Choose the results of tools, and which tools are idempotent."""
        self._tools, self._harmless = tools, frozenset(harmless)
        self.calls: list[ToolAsked] = []
        """Every request, also those of unknown tools."""
        self.cancelled: list[str] = []

    def nature(self, who: Principal, tool: str) -> Nature:
        """Whether a tool is idempotent."""
        return Nature(harmless=tool in self._harmless)

    async def execute(self, who: Principal, asked: ToolAsked) -> Done:
        """Return the scripted result."""
        self.calls.append(asked)
        result = self._tools.get(asked.tool)
        if result is None:
            return failure(asked.request_id, asked.tool, ErrorKind.NOT_FOUND, "no such tool")
        if isinstance(result, str):
            return said(asked, result)
        return result if isinstance(result, ToolResult) else await result(asked)

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Record that a call was cancelled."""
        self.cancelled.append(request_id)


def said(asked: ToolAsked, text: str, **details: JSON) -> ToolResult:
    """A result with a text."""
    return ToolResult(asked.request_id, asked.tool, (TextBlock(text),), details=details)


async def never(_: object) -> AgentAnswer:
    """An agent whose run does not end by itself."""
    await asyncio.Event().wait()
    return AgentAnswer(ok=False)
