"""The MCP server over standard input and output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from evoclaw.api.mcp_server import McpTools
from evoclaw.core.errors import ConfigError

MAX_MESSAGE_BYTES = 4 << 20
"""The limit of one message; the same as over HTTP."""

Inbound = MemoryObjectSendStream[SessionMessage | Exception]
Outbound = MemoryObjectReceiveStream[SessionMessage]


async def serve_stdio(tools: McpTools) -> None:
    """Serve until the client closes standard input, or until cancelled."""
    server = tools.server()
    async with _streams() as (inbound, outbound):
        await server.run(inbound, outbound, server.create_initialization_options())


@asynccontextmanager
async def _streams() -> AsyncGenerator[
    tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
]:
    """The message streams, without threads that a blocked read would keep alive.

    Meanwhile descriptor 0 is empty and descriptor 1 goes to standard error: a stray print of this
    process or a child must not look like a message.
    """
    to_us, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, to_it = anyio.create_memory_object_stream[SessionMessage](0)
    async with AsyncExitStack() as stack:
        for stream in (to_us, inbound, outbound, to_it):
            stack.callback(stream.close)
        source, sink = _redirect_stdio(stack)
        reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
        loop = asyncio.get_running_loop()
        try:
            incoming, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb")
            )
        except ValueError:
            raise ConfigError(
                "standard input is a file: an MCP client must connect through a pipe"
            ) from None
        stack.callback(incoming.close)
        stack.callback(os.close, sink)
        pumps = [
            asyncio.create_task(_read_messages(reader, to_us)),
            asyncio.create_task(_write_messages(to_it, sink)),
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


def _redirect_stdio(stack: AsyncExitStack) -> tuple[int, int]:
    source, sink = os.dup(0), os.dup(1)
    originals = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # A client that does not read must not block the event loop.
    os.set_blocking(sink, False)

    def restore() -> None:
        for saved in originals:
            os.set_blocking(saved, True)
        for saved, descriptor in zip(originals, (0, 1), strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)

    stack.callback(restore)
    return source, sink


async def _read_messages(reader: asyncio.StreamReader, incoming: Inbound) -> None:
    try:
        while line := await reader.readline():
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


async def _write_messages(outgoing: Outbound, sink: int) -> None:
    async for item in outgoing:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await _write(sink, text.encode() + b"\n")
        except BrokenPipeError:
            # The client has exited; the end of standard input stops the server.
            return


async def _write(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(sink, rest[:65_536]) :]
        except BlockingIOError:
            await _wait_writable(sink)


async def _wait_writable(sink: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sink, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(sink)
