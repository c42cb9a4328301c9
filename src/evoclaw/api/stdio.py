"""Standard input and output as the two pipes of a protocol with a message on each line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from evoclaw.core.errors import ConfigError


@asynccontextmanager
async def open_stdio(client: str, max_line_bytes: int) -> AsyncGenerator[StdioPipes]:
    """The pipes to the client, without threads that a blocked read would keep alive.

    Meanwhile descriptor 0 is empty and descriptor 1 goes to standard error: a stray print of this
    process or a child must not look like a message.
    """
    async with AsyncExitStack() as stack:
        source, sink = _redirect_stdio(stack)
        reader = asyncio.StreamReader(limit=max_line_bytes)
        try:
            incoming, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb")
            )
        except ValueError:
            raise ConfigError(
                f"standard input is a file: {client} must connect through a pipe"
            ) from None
        stack.callback(incoming.close)
        stack.callback(os.close, sink)
        yield StdioPipes(reader, sink)


class StdioPipes:
    """The lines from a client, and the pipe to it."""

    def __init__(self, reader: asyncio.StreamReader, sink: int) -> None:
        """Read from a stream, and write to a descriptor that does not block."""
        self._reader, self._sink = reader, sink

    async def read_line(self) -> bytes:
        """The next line, empty at the end; `ValueError` if it is longer than the limit."""
        return await self._reader.readline()

    async def write(self, data: bytes) -> None:
        """Write all of it; a client that does not read makes this wait."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._sink, rest[:65_536]) :]
            except BlockingIOError:
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._sink, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_writer(self._sink)


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
