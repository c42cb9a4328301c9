"""The MCP server: EvoClaw's tools for MCP clients, with policies, sandbox and recording."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from mcp import types
from msgspec.structs import replace

from evoclaw.api.mcp.endpoint import McpEndpoint, McpPromptSource, McpResourceSource
from evoclaw.api.mcp.forms import FormApprover
from evoclaw.api.mcp.requests import McpRequest
from evoclaw.core.agent import LoopSettings
from evoclaw.core.calls import Turn, run_calls
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import CallFinished, CallOutput, Event, ReplyEvent, RunFinished, RunStarted
from evoclaw.core.events import StopReason as Stop
from evoclaw.core.messages import ErrorKind, Finish, ImageBlock, Reply, ToolCall, ToolResult, user
from evoclaw.core.ports import Approver, Executor, NoApprover, Policy, Ports, Request, Sink
from evoclaw.core.profile import Profile
from evoclaw.core.run import Bus
from evoclaw.core.state import new_run
from evoclaw.core.tools import Tool, failure
from evoclaw.core.toolset import Toolset

CANCEL_TIMEOUT_S = 15.0
"""How long a cancelled call may take to end."""
CALL_ID = "call_1"


class McpTools:
    """An executor's tools for MCP clients, under the same policies as agent runs.

    Each call is a run of one turn: judged by the policy, approved by a person if the policy asks,
    executed under its timeout, and recorded by the sinks.
    """

    def __init__(
        self,
        executor: Executor,
        policy: Policy,
        approver: Approver | None = None,
        *,
        sinks: Sequence[Sink] = (),
        settings: LoopSettings = LoopSettings(),
        resources: McpResourceSource | None = None,
        prompts: McpPromptSource | None = None,
        ask_client: bool = True,
    ) -> None:
        """Configure the server.

        Args:
            executor: The tools that clients are offered, and where calls run.
            policy: Judges each call.
            approver: Asks a person when the policy returns Ask and the user of the client cannot be
                asked; without one such calls are denied.
            sinks: Receive the records; a call that cannot be recorded is not run.
            settings: Limits the text of a result, the duration and the concurrency of calls.
            resources: What clients can read beside the tools.
            prompts: What users of clients can choose from.
            ask_client: Whether the user of a client that shows forms may approve its calls.
        """
        self._ports = Ports(_NoModel(), executor, policy, approver or NoApprover())
        self._sinks, self._settings = sinks, settings
        self._resources, self._prompts, self._ask_client = resources, prompts, ask_client
        self._slots = asyncio.Semaphore(settings.max_parallel)
        self._seen: Sequence[Tool] | None = None
        self._tools = Toolset()

    def tools(self, request: McpRequest | None = None) -> Sequence[Tool]:
        """The tools that clients are offered now."""
        return tuple(self._toolset())

    def _toolset(self) -> Toolset:
        seen = self._ports.executor.tools()
        if seen is not self._seen:
            self._tools, self._seen = Toolset(seen, like=seen), seen
        return self._tools

    def endpoint(self) -> McpEndpoint:
        """What answers the requests of clients, for either transport."""
        return McpEndpoint(self, resources=self._resources, prompts=self._prompts)

    async def call(
        self, request: McpRequest, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run a call; every failure becomes a result.

        A client of 2026-07-28 whose user must be asked gets a form, and sends the call again with
        the answer.
        """
        deadline = Deadline(self._settings.max_seconds)
        # A separate task: the SDK cancels repeatedly, which would interrupt the clean-up.
        work = asyncio.create_task(self._run(request, params, deadline))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            await _cancel_call(work, deadline)
            raise
        if request.forms:
            return types.InputRequiredResult(input_requests=request.forms)
        return to_mcp_result(work.result())

    async def _run(
        self, request: McpRequest, params: types.CallToolRequestParams, deadline: Deadline
    ) -> ToolResult:
        """Execute one call as a run of one turn."""
        name = params.name
        text = msgspec.json.encode(params.arguments or {}).decode()
        call = ToolCall(CALL_ID, name, text)
        reply = Reply(calls=(call,), finish=Finish.CALLS, model=_NoModel.model)
        state = new_run((user(f"The MCP client {request.client!r} asks for {name!r}."), reply))
        bus = Bus(state.run_id, self._sinks)

        def record(event: Event) -> None:
            state.apply(event)
            bus.publish(event)

        record(RunStarted(_NoModel.model, state.opening, self._settings, Profile()))
        if bus.failures:
            text = "The call could not be recorded, so it was not run. Explain this to the user."
            return failure(CALL_ID, name, ErrorKind.INTERNAL, f"Error: {text}")
        turn = Turn(self._ports_of(request), self._settings, self._toolset(), deadline)
        result = _approval_pending(name)
        async with self._slots, aclosing(run_calls(state, turn)) as events:
            async for event in events:
                record(event)
                if isinstance(event, CallOutput):
                    await request.report(event.text)
                elif isinstance(event, CallFinished):
                    result = event.result
        stop = Stop.CANCELLED if deadline.cancelled else Stop.COMPLETED
        stop = Stop.WAITING if state.pending else stop
        record(RunFinished(stop, result.text, turns=1, calls=state.calls))
        deadline.release()
        return result

    def _ports_of(self, request: McpRequest) -> Ports:
        if not self._ask_client:
            return self._ports
        return replace(self._ports, approver=FormApprover(request, self._ports.approver))


async def _cancel_call(work: asyncio.Task[ToolResult], deadline: Deadline) -> None:
    """Cancel a call and wait until it has ended, shielded from further cancellation."""
    from anyio import CancelScope

    with CancelScope(shield=True):
        deadline.cancel()
        await asyncio.wait([work], timeout=CANCEL_TIMEOUT_S)
        if not work.done():
            work.cancel()
            await asyncio.wait([work], timeout=CANCEL_TIMEOUT_S)


def _approval_pending(name: str) -> ToolResult:
    text = f"Error: Tool {name!r} was not run: it waits for a person's approval. Try again later."
    return failure(CALL_ID, name, ErrorKind.PERMISSION_DENIED, text)


def to_mcp_result(result: ToolResult) -> types.CallToolResult:
    """A result as MCP clients see it."""
    content: list[types.ContentBlock] = [
        types.ImageContent(data=block.data, mime_type=block.media_type)
        if isinstance(block, ImageBlock)
        else types.TextContent(text=block.text)
        for block in result.blocks
    ]
    return types.CallToolResult(content=content, is_error=result.error is not None)


class _NoModel:
    """Stands in for the provider of a run: the MCP client has the model."""

    model = "mcp"
    profile = Profile()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Always fails: an MCP run never asks for a reply."""
        raise ProviderError(ProviderErrorKind.MODEL_NOT_FOUND, "an MCP server has no model")
        yield
