"""A small web server that serves what a test says, and remembers what was asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Pages = Mapping[str, str | bytes]
"""Path to a page; or, as bytes, to a whole answer."""


@dataclass
class PageServer:
    port: int
    host: str
    pages: dict[str, str | bytes]
    asked: list[str] = field(default_factory=list[str])
    """Request lines and their bodies' fields, in order."""
    heads: list[str] = field(default_factory=list[str])
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}:{self.port}{path}"


def answer(body: str, *headers: str, status: str = "200 OK") -> bytes:
    data = body.encode()
    lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(data)}")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode() + data


def redirect_to(url: str) -> bytes:
    return answer("", f"Location: {url}", status="302 Found")


@asynccontextmanager
async def serve_pages(pages: Pages, host: str = "127.0.0.1") -> AsyncGenerator[PageServer]:
    served = PageServer(0, host, dict(pages))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            served.asked.append(head.split(" ")[1])
            served.heads.append(head)
            served.arrived.set()
            path = head.split(" ")[1].partition("?")[0]
            page = served.pages.get(path, answer("nothing here", status="404 Not Found"))
            if isinstance(page, str):
                page = answer(page, "Content-Type: text/html; charset=utf-8")
            writer.write(page)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        await server.wait_closed()
