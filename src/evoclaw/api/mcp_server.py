"""The MCP server: EvoClaw's tools for MCP clients, with policies, sandbox and recording."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from mcp import types
from mcp.server import Server, ServerRequestContext
from msgspec import Struct

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
from evoclaw.core.tools import Effect, Tool, failure
from evoclaw.core.toolset import Toolset
from evoclaw.core.version import VERSION

CANCEL_TIMEOUT_S = 15.0
"""How long a cancelled call may take to end."""
CALL_ID = "call_1"
ProgressCallback: TypeAlias = Callable[[str], Awaitable[None]]
Context: TypeAlias = ServerRequestContext[Any, Any]


class McpToolRequest(Struct, frozen=True):
    """A tool call of an MCP client."""

    name: str
    arguments: dict[str, Any]
    client: str


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
    ) -> None:
        """Configure the server.

        Args:
            executor: The tools that clients are offered, and where calls run.
            policy: Judges each call.
            approver: Asks a person when the policy returns Ask; without one such calls wait.
            sinks: Receive the records; a call that cannot be recorded is not run.
            settings: Limits the text of a result, the duration and the concurrency of calls.
        """
        self._ports = Ports(_NoModel(), executor, policy, approver or NoApprover())
        self._sinks, self._settings = sinks, settings
        self._slots = asyncio.Semaphore(settings.max_parallel)
        self._seen: Sequence[Tool] | None = None
        self._tools = Toolset()

    def tools(self) -> Toolset:
        """The tools that clients are offered now."""
        seen = self._ports.executor.tools()
        if seen is not self._seen:
            self._tools, self._seen = Toolset(seen, like=seen), seen
        return self._tools

    async def call(
        self, request: McpToolRequest, on_output: ProgressCallback, deadline: Deadline
    ) -> ToolResult:
        """Execute one call; every failure becomes a result."""
        text = msgspec.json.encode(request.arguments).decode()
        call = ToolCall(CALL_ID, request.name, text)
        reply = Reply(calls=(call,), finish=Finish.CALLS, model=_NoModel.model)
        state = new_run(
            (user(f"The MCP client {request.client!r} asks for {request.name!r}."), reply)
        )
        bus = Bus(state.run_id, self._sinks)

        def record(event: Event) -> None:
            state.apply(event)
            bus.publish(event)

        record(RunStarted(_NoModel.model, state.opening, self._settings, Profile()))
        if bus.failures:
            text = "The call could not be recorded, so it was not run. Explain this to the user."
            return failure(CALL_ID, request.name, ErrorKind.INTERNAL, f"Error: {text}")
        turn = Turn(self._ports, self._settings, self.tools(), deadline)
        result = _approval_pending(request)
        async with self._slots, aclosing(run_calls(state, turn)) as events:
            async for event in events:
                record(event)
                if isinstance(event, CallOutput):
                    await on_output(event.text)
                elif isinstance(event, CallFinished):
                    result = event.result
        stop = Stop.CANCELLED if deadline.cancelled else Stop.COMPLETED
        stop = Stop.WAITING if state.pending else stop
        record(RunFinished(stop, result.text, turns=1, calls=state.calls))
        deadline.release()
        return result

    def server(self) -> Server[Any]:
        """The server object of the MCP SDK, for either transport."""
        return Server(
            "evoclaw",
            version=VERSION,
            instructions="Tools on machines of EvoClaw. Policies judge each call before it runs; a "
            "refusal says what to do instead.",
            on_list_tools=self._on_list,
            on_call_tool=self._on_call,
        )

    async def _on_list(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_to_mcp_tool(tool) for tool in self.tools()])

    async def _on_call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        parameters = context.session.client_params
        client = parameters.client_info.name[:80] if parameters is not None else "unknown"
        reports = 0

        async def report(text: str) -> None:
            nonlocal reports
            reports += 1
            # The SDK sends it only if the client asked for progress.
            await context.session.report_progress(reports, message=text)

        deadline = Deadline(self._settings.max_seconds)
        tool_request = McpToolRequest(params.name, params.arguments or {}, client)
        # A separate task: the SDK cancels repeatedly, which would interrupt the clean-up.
        work = asyncio.create_task(self.call(tool_request, report, deadline))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            await _cancel_call(work, deadline)
            raise
        return _to_mcp_result(work.result())


async def _cancel_call(work: asyncio.Task[ToolResult], deadline: Deadline) -> None:
    """Cancel a call and wait until it has ended, shielded from further cancellation."""
    from anyio import CancelScope

    with CancelScope(shield=True):
        deadline.cancel()
        await asyncio.wait([work], timeout=CANCEL_TIMEOUT_S)
        if not work.done():
            work.cancel()
            await asyncio.wait([work], timeout=CANCEL_TIMEOUT_S)


def _approval_pending(request: McpToolRequest) -> ToolResult:
    text = (
        f"Error: Tool {request.name!r} was not run: it waits for a person's approval. Try "
        "again later."
    )
    return failure(CALL_ID, request.name, ErrorKind.PERMISSION_DENIED, text)


def _to_mcp_tool(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.parameters,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.effect is Effect.READ,
            idempotent_hint=tool.idempotent or tool.effect is Effect.READ,
            open_world_hint="network" in tool.permissions,
        ),
    )


def _to_mcp_result(result: ToolResult) -> types.CallToolResult:
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
