"""An HTTP server for one file: with ranges, entity tags, and connections that break."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_RANGE = re.compile(r"bytes=(\d+)-")
_PIECE_BYTES = 65_536


@dataclass
class FileServer:
    """What a test sets and sees."""

    content: bytes
    etag: str = '"one"'
    break_after: list[int] = field(default_factory=list[int])
    """For each connection in turn, the bytes after which it is closed."""
    hold_after: int | None = None
    """Bytes after which a connection stalls until the client closes it."""
    has_ranges: bool = True
    has_length: bool = True
    redirect_to: str = ""
    status: int = 200
    requests: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The headers of each request, in lower case, and its `path`."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ranges(self) -> list[str]:
        """The range of each request; empty for the whole file."""
        return [request.get("range", "") for request in self.requests]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.split(": ", 1) for line in head[1:] if ": " in line)
            request = {name.lower(): value for name, value in pairs}
            self.requests.append(request | {"path": head[0].split(" ")[1]})
            await self._send(writer, request, reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        request: dict[str, str],
        reader: asyncio.StreamReader,
    ) -> None:
        start, status = self._start(request)
        total = len(self.content)
        lines = [f"HTTP/1.1 {status} Whatever", "Connection: close", f"ETag: {self.etag}"]
        if self.redirect_to:
            lines = ["HTTP/1.1 302 Found", f"Location: {self.redirect_to}", "Content-Length: 0"]
        elif status == 206:
            lines.append(f"Content-Range: bytes {start}-{total - 1}/{total}")
        if self.has_length and not self.redirect_to:
            lines.append(f"Content-Length: {total - start if status < 300 else 0}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if self.redirect_to or status >= 300:
            return await writer.drain()
        stop = self.break_after.pop(0) if self.break_after else total
        for at in range(start, min(total, start + stop), _PIECE_BYTES):
            if self.hold_after is not None and at >= self.hold_after:
                self.held.set()
                await reader.read()  # until the client is gone
                return None
            writer.write(self.content[at : min(at + _PIECE_BYTES, start + stop)])
            await writer.drain()
        return None

    def _start(self, request: dict[str, str]) -> tuple[int, int]:
        """Where to start, and with which status."""
        wanted = _RANGE.fullmatch(request.get("range", ""))
        condition = request.get("if-range")
        if self.status != 200 or not wanted or not self.has_ranges:
            return 0, self.status
        if condition is not None and condition != self.etag:
            return 0, 200
        start = int(wanted[1])
        return (start, 206) if start < len(self.content) else (0, 416)


@asynccontextmanager
async def file_server(content: bytes, **options: object) -> AsyncGenerator[FileServer]:
    """Serve a file at every path while the block lasts."""
    state = FileServer(content, **options)  # pyright: ignore[reportArgumentType]
    server = await asyncio.start_server(state.answer, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
