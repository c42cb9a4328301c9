"""What every proxy of ours does with bytes: connect to judged addresses, carry both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import urlsplit

from evoclaw.executors.url_guard import Target

Count: TypeAlias = Callable[[int], bool]
"""Told of bytes before they are passed on; False stops the carrying."""
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LONGEST_HEAD = 64 << 10
PIECE = 64 << 10
CONNECT_SECONDS = 10.0
HEAD_SECONDS = 30.0
END = b"\r\n\r\n"

# What is between us and one neighbour only, and what we say anew.
_OURS = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")


def port_of(url: str) -> int:
    """The port that a URL means."""
    split = urlsplit(url)
    return split.port or (443 if split.scheme == "https" else 80)


async def connect(target: Target) -> Streams:
    """Connect to one of the judged addresses and to nothing else; `OSError` if none answers."""
    problem = OSError("no address")
    for address in target.addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(
                    address, port_of(target.url), limit=LONGEST_HEAD
                )
        except (OSError, TimeoutError) as error:
            problem = OSError(str(error) or "it does not answer")
    raise problem


def for_the_server(head: bytes) -> bytes:
    """A request as a server expects it: only the path, and nothing kept open."""
    line, _, _ = head.partition(b"\r\n")
    method, url, version = line.split(b" ", 2)
    path = b"/" + url.partition(b"://")[2].partition(b"/")[2]
    if b"/" not in url.partition(b"://")[2]:
        query = url.partition(b"?")
        path = b"/" + query[1] + query[2]
    return closing(b" ".join((method, path, version)) + head[len(line) :])


def closing(head: bytes) -> bytes:
    """A head that promises nothing beyond this one exchange."""
    lines = head.removesuffix(END).split(b"\r\n")
    kept = [line for line in lines[1:] if line.partition(b":")[0].strip().lower() not in _OURS]
    return b"\r\n".join((lines[0], *kept, b"Connection: close")) + END


async def answer(writer: asyncio.StreamWriter, status: str, text: str = "") -> None:
    """Answer in the server's place."""
    body = f"{text}\n".encode() if text else b""
    kind = "Content-Type: text/plain; charset=utf-8\r\n" if body else ""
    head = f"HTTP/1.1 {status}\r\n{kind}Content-Length: {len(body)}\r\nConnection: close"
    writer.write(head.encode() + END + body)
    await writer.drain()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count) -> None:
    """Carry bytes one way until there are no more, or too many."""
    while piece := await reader.read(PIECE):
        if not count(len(piece)):
            return
        writer.write(piece)
        await writer.drain()


async def bring_answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count
) -> None:
    """Carry a server's whole answer, and say that nothing follows it."""
    head = await reader.readuntil(END)
    while head[9:10] == b"1":  # `HTTP/1.1 100 Continue` and its like
        writer.write(head)
        head = await reader.readuntil(END)
    # Otherwise what is meant for another host would be sent along this way.
    writer.write(closing(head))
    await carry(reader, writer, count)


async def join(
    up: asyncio.Task[None], down: asyncio.Task[None], back: asyncio.StreamWriter
) -> None:
    """Let both ways run until the server, or in a tunnel either side, has no more."""
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if not down.done():
            # All has been said to the server; it may still have something to say.
            with suppress(OSError, RuntimeError):
                back.write_eof()
            await asyncio.wait((down,))
        down.result()
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
