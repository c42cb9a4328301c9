"""Proxy tunnels: connect to judged addresses only, and forward bytes both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import urlsplit

from evoclaw.executors.url_guard import UrlTarget

Count: TypeAlias = Callable[[int], bool]
"""Called with the number of bytes before they are forwarded; False stops the tunnel."""
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

MAX_HEAD_BYTES = 64 << 10
READ_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 10.0
HEAD_TIMEOUT_S = 30.0
END_OF_HEAD = b"\r\n\r\n"

# Hop-by-hop headers, and those that the proxy sets itself.
_HOP_BY_HOP_HEADERS = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")


def port_of(url: str) -> int:
    """The port of a URL."""
    split = urlsplit(url)
    return split.port or (443 if split.scheme == "https" else 80)


async def connect(target: UrlTarget) -> Streams:
    """Connect to one of the judged addresses and to nothing else; `OSError` if none answers."""
    problem = OSError("no address")
    for address in target.addresses:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(
                    address, port_of(target.url), limit=MAX_HEAD_BYTES
                )
        except (OSError, TimeoutError) as error:
            problem = OSError(str(error) or "it does not answer")
    raise problem


def for_the_server(head: bytes) -> bytes:
    """A request head for the origin server: only the path, and `Connection: close`."""
    line, _, _ = head.partition(b"\r\n")
    method, url, version = line.split(b" ", 2)
    path = b"/" + url.partition(b"://")[2].partition(b"/")[2]
    if b"/" not in url.partition(b"://")[2]:
        query = url.partition(b"?")
        path = b"/" + query[1] + query[2]
    return closing(b" ".join((method, path, version)) + head[len(line) :])


def closing(head: bytes) -> bytes:
    """A head that announces the close after this exchange."""
    lines = head.removesuffix(END_OF_HEAD).split(b"\r\n")
    kept = [
        line
        for line in lines[1:]
        if line.partition(b":")[0].strip().lower() not in _HOP_BY_HOP_HEADERS
    ]
    return b"\r\n".join((lines[0], *kept, b"Connection: close")) + END_OF_HEAD


async def answer(writer: asyncio.StreamWriter, status: str, text: str = "") -> None:
    """Send the proxy's own response instead of the server's."""
    body = f"{text}\n".encode() if text else b""
    kind = "Content-Type: text/plain; charset=utf-8\r\n" if body else ""
    head = f"HTTP/1.1 {status}\r\n{kind}Content-Length: {len(body)}\r\nConnection: close"
    writer.write(head.encode() + END_OF_HEAD + body)
    await writer.drain()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count) -> None:
    """Forward bytes one way until the end, or until `count` stops it."""
    while piece := await reader.read(READ_BYTES):
        if not count(len(piece)):
            return
        writer.write(piece)
        await writer.drain()


async def bring_answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count
) -> None:
    """Forward a server's whole answer, and announce the close after it."""
    head = await reader.readuntil(END_OF_HEAD)
    while head[9:10] == b"1":  # `HTTP/1.1 100 Continue` and its like
        writer.write(head)
        head = await reader.readuntil(END_OF_HEAD)
    # Otherwise requests for another host would be sent over this connection.
    writer.write(closing(head))
    await carry(reader, writer, count)


async def join(
    up: asyncio.Task[None], down: asyncio.Task[None], back: asyncio.StreamWriter
) -> None:
    """Run both directions until the server, or in a tunnel either end, has closed."""
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if not down.done():
            # The request was sent completely; the server may still be answering.
            with suppress(OSError, RuntimeError):
                back.write_eof()
            await asyncio.wait((down,))
        down.result()
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
