"""The MCP server over standard input and output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from evoclaw.api.mcp.endpoint import McpEndpoint
from evoclaw.api.mcp_server import McpTools
from evoclaw.api.stdio import StdioPipes, open_stdio

MAX_MESSAGE_BYTES = 4 << 20
"""The limit of one message; the same as over HTTP."""

Inbound = MemoryObjectSendStream[SessionMessage | Exception]
Outbound = MemoryObjectReceiveStream[SessionMessage]


async def serve_stdio(tools: McpTools | McpEndpoint) -> None:
    """Serve until the client closes standard input, or until cancelled."""
    server = (tools.endpoint() if isinstance(tools, McpTools) else tools).server()
    async with _streams() as (inbound, outbound):
        await server.run(inbound, outbound, server.create_initialization_options())


@asynccontextmanager
async def _streams() -> AsyncGenerator[
    tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
]:
    """The message streams of the SDK, connected to standard input and output."""
    to_us, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, to_it = anyio.create_memory_object_stream[SessionMessage](0)
    async with AsyncExitStack() as stack:
        for stream in (to_us, inbound, outbound, to_it):
            stack.callback(stream.close)
        pipes = await stack.enter_async_context(open_stdio("an MCP client", MAX_MESSAGE_BYTES))
        pumps = [
            asyncio.create_task(_read_messages(pipes, to_us)),
            asyncio.create_task(_write_messages(to_it, pipes)),
        ]
        try:
            yield inbound, outbound
        finally:
            # Flush the responses, but wait only briefly for a client that does not read.
            outbound.close()
            await asyncio.wait(pumps[1:], timeout=1)
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)


async def _read_messages(pipes: StdioPipes, incoming: Inbound) -> None:
    try:
        while line := await pipes.read_line():
            try:
                item = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError as problem:
                await incoming.send(problem)
                continue
            await incoming.send(item)
    except ValueError:
        # The line exceeds the limit, so the start of the next message is unknown.
        return
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return
    finally:
        incoming.close()


async def _write_messages(outgoing: Outbound, pipes: StdioPipes) -> None:
    async for item in outgoing:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await pipes.write(text.encode() + b"\n")
        except BrokenPipeError:
            # The client has exited; the end of standard input stops the server.
            return
