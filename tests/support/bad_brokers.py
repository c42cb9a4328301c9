"""A broker made of a few bytes, which says what a test wrote: refusals, good-byes, rubbish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from evoclaw.transport.address import Address
from tests.support.fault_proxy import packet_size

SUBACK, DISCONNECT = 0x90, 0xE0
WELCOME = b"\x20\x03\0\0\0"
"""An MQTT 5 CONNACK without properties."""


def packet(kind: int, body: bytes) -> bytes:
    """A whole packet."""
    length, digits = len(body), bytearray()
    while length > 127:
        digits.append(length & 127 | 128)
        length >>= 7
    return bytes([kind, *digits, length]) + body


@dataclass
class Peer:
    """One connection of a client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> bytes:
        """One packet."""
        data = await self.reader.readexactly(2)
        while not (size := packet_size(data)):
            data += await self.reader.readexactly(1)
        return data + await self.reader.readexactly(size - len(data))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def accept(self, codes: bytes = b"\1") -> None:
        """Let the client in; answer its subscription with these codes."""
        await self.read()
        await self.send(WELCOME)
        subscribe = await self.read()
        start = 2 if subscribe[1] < 128 else 3
        await self.send(packet(SUBACK, subscribe[start : start + 2] + b"\0" + codes))

    async def read_until_closed(self) -> None:
        """Hear the client out, saying nothing, until it says good-bye or is gone."""
        while (await self.read())[0] != DISCONNECT:
            pass


@asynccontextmanager
async def bad_broker(behave: Callable[[Peer], Awaitable[None]]) -> AsyncGenerator[Address]:
    """Behave so with every client, then listen until it leaves."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(peer: Peer) -> None:
        try:
            await behave(peer)
            await peer.read_until_closed()
        except (OSError, asyncio.IncompleteReadError):
            pass  # The client hung up, as it should.
        finally:
            peer.writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(Peer(reader, writer)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
