"""Nested calls: of an edge's own model, run by the orchestrator while the edge answers a prompt.

The calls go back to the orchestrator, which judges them by the rules and the budget of the run that
sent the prompt, runs them, and sends the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeAlias

import msgspec

from evoclaw.core.errors import SchemaError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.transport.outcomes import to_result
from evoclaw.transport.wire import (
    Command,
    NestedCall,
    NestedResult,
    Outcome,
    ReportType,
    as_payload,
    convert,
)

RESEND_DELAYS_S = (2.0, 4.0, 8.0, 15.0)
"""Until an unanswered call is sent again; the last one is repeated."""
MAX_PROMPT_TOOLS = 8
SendReport: TypeAlias = Callable[[ReportType, dict[str, JSON]], Awaitable[object]]


class PendingNestedCalls:
    """The nested calls of this edge that wait for their results."""

    def __init__(self, resend_delays: Sequence[float] = RESEND_DELAYS_S) -> None:
        self.send: SendReport | None = None
        """Sends a report; set once the edge exists."""
        self._resend_delays = tuple(resend_delays)
        self._waiting: dict[tuple[str, int], asyncio.Future[Outcome]] = {}

    def of(self, prompt: Command, own: Sequence[Tool]) -> PromptTools | None:
        """The tools that a prompt names, except those the edge has itself; None if there are none.

        Args:
            prompt: The command, whose grant was checked.
            own: The tools of the edge.
        """
        given = prompt.payload.get("tools")
        if not is_array(given) or not given:
            return None
        names = {tool.name for tool in own}
        try:
            tools = msgspec.convert(given[:MAX_PROMPT_TOOLS], list[Tool])
            found = Toolset(tool for tool in tools if tool.name not in names)
        except (msgspec.ValidationError, SchemaError) as problem:
            text = f"The tools that the prompt names cannot be read: {problem}."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text) from None
        return PromptTools(self, prompt.request_id, found) if len(found) else None

    def deliver(self, result: NestedResult) -> bool:
        """Take a result; False if no call waits for it any more."""
        waiting = self._waiting.get((result.prompt_id, result.number))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(convert(result.outcome, Outcome))
        return True

    async def ask(self, call: NestedCall) -> Outcome:
        """Send a call until its result comes."""
        if self.send is None:
            raise ToolFailure(
                ErrorKind.AGENT_OFFLINE,
                "This device is not connected to its orchestrator. Continue without the "
                "tool, or explain to the user.",
            )
        key = (call.prompt_id, call.number)
        answer = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            for tries in count():
                await self.send(ReportType.CALL, as_payload(call))
                delay = self._resend_delays[min(tries, len(self._resend_delays) - 1)]
                if (await asyncio.wait([answer], timeout=delay))[0]:
                    break
            return answer.result()
        finally:
            del self._waiting[key]


class PromptTools:
    """The tools that one prompt names, run by the orchestrator."""

    def __init__(self, calls: PendingNestedCalls, prompt_id: str, tools: Toolset) -> None:
        self._calls, self._prompt_id, self._tools = calls, prompt_id, tools
        self._numbers = count(1)

    def tools(self) -> Sequence[Tool]:
        """The nested tools."""
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Ask the orchestrator to run one call, and wait for its result."""
        asked = NestedCall(
            self._prompt_id, next(self._numbers), call.name, call.arguments, call.timeout * 1000
        )
        return to_result(await self._calls.ask(asked), call.id, call.name)
