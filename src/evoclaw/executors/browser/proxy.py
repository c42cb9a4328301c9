"""The only way out of a browser: a proxy that connects to judged addresses and to nothing else.

A browser resolves names by itself and follows redirects by itself; whatever is judged before it
sets out can be something else when it arrives. Here every connection is judged when it is made,
and made to the very address that was judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import urlsplit

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.url_guard import Guard, Target

MayVisit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Why a URL may not be visited; None if it may."""

LONGEST_HEAD = 64 << 10
PIECE = 64 << 10
CONNECT_SECONDS = 10.0
HEAD_SECONDS = 30.0
MOST_BYTES = 256 << 20
"""What one session may bring in before it has to be closed."""
MOST_REFUSALS = 100

# What is between us and one neighbour only, and what we say anew.
_OURS = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")
_END = b"\r\n\r\n"


class GuardedProxy:
    """An HTTP proxy on the loopback, for one session of one browser."""

    def __init__(self, guard: Guard, *, may_visit: MayVisit | None = None) -> None:
        """Set the rules.

        Args:
            guard: Which addresses may be connected to.
            may_visit: What is asked besides; of an encrypted connection it sees only the host.
        """
        self._guard, self._may_visit = guard, may_visit
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._received = 0
        self.refusals: dict[str, ToolFailure] = {}
        """Why, by `host:port`; the latest last."""

    @property
    def address(self) -> str:
        """What the browser is told."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LONGEST_HEAD)

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def judge(self, url: str) -> Target:
        """Where a URL leads, if it may be visited; a refusal is remembered and raised."""
        try:
            if self._received > MOST_BYTES:
                raise _too_much()
            target = await self._guard.target(url)
            reason = await self._may_visit(url) if self._may_visit is not None else None
            if reason is not None:
                raise refused(url, reason)
        except ToolFailure as failure:
            self.remember(url, failure)
            raise
        return target

    def remember(self, url: str, failure: ToolFailure) -> None:
        """Keep why a URL was refused, for whoever wonders why the page did not come."""
        if len(self.refusals) >= MOST_REFUSALS:
            del self.refusals[next(iter(self.refusals))]
        place = place_of(url)
        self.refusals.pop(place, None)
        self.refusals[place] = failure

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            # A neighbour went away or talks nonsense: the browser sees a broken connection.
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only `close` cancels, and the server would report it as somebody's fault.
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(_END)
        method, _, rest = head.partition(b" ")
        place = rest.partition(b" ")[0].decode("latin-1")
        tunnel = method == b"CONNECT"
        try:
            target = await self.judge(f"https://{place}/" if tunnel else place)
        except ToolFailure:
            # Without a body, so that a browser shows its own error and no page of ours.
            await _answer(writer, b"403 Forbidden")
            return
        try:
            there, back = await _connect(target)
        except OSError:
            await _answer(writer, b"502 Bad Gateway")
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                back.write(_for_the_server(head))
            await self._join(reader, writer, there, back, tunnel=tunnel)
        finally:
            back.close()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        *,
        tunnel: bool,
    ) -> None:
        """Carry bytes both ways until the server, or in a tunnel either side, has no more."""
        up = asyncio.create_task(self._carry(reader, back))
        down = asyncio.create_task(self._bring(there, writer, tunnel=tunnel))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if not down.done():
                # The browser has said all; the server may still have something to say.
                with suppress(OSError, RuntimeError):
                    back.write_eof()
                await asyncio.wait((down,))
            down.result()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _bring(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, tunnel: bool
    ) -> None:
        if not tunnel:
            head = await reader.readuntil(_END)
            while head[9:10] == b"1":  # `HTTP/1.1 100 Continue` and its like
                writer.write(head)
                head = await reader.readuntil(_END)
            # Otherwise the browser would send what is meant for another host along this way.
            writer.write(_closing(head))
        await self._carry(reader, writer, count=True)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool = False
    ) -> None:
        while piece := await reader.read(PIECE):
            if count:
                self._received += len(piece)
                if self._received > MOST_BYTES:
                    return
            writer.write(piece)
            await writer.drain()


async def _connect(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    split = urlsplit(target.url)
    port = split.port or (443 if split.scheme == "https" else 80)
    problem: OSError = OSError("no address")
    for address in target.addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(address, port, limit=LONGEST_HEAD)
        except (OSError, TimeoutError) as error:
            problem = OSError(str(error))
    raise problem


def _for_the_server(head: bytes) -> bytes:
    """A request as a server expects it: only the path, and nothing kept open."""
    line, _, _ = head.partition(b"\r\n")
    method, url, version = line.split(b" ", 2)
    path = b"/" + url.partition(b"://")[2].partition(b"/")[2]
    if b"/" not in url.partition(b"://")[2]:
        query = url.partition(b"?")
        path = b"/" + query[1] + query[2]
    return _closing(b" ".join((method, path, version)) + head[len(line) :])


def _closing(head: bytes) -> bytes:
    lines = head.removesuffix(_END).split(b"\r\n")
    kept = [one for one in lines[1:] if one.partition(b":")[0].strip().lower() not in _OURS]
    return b"\r\n".join((lines[0], *kept, b"Connection: close")) + _END


async def _answer(writer: asyncio.StreamWriter, status: bytes) -> None:
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close" + _END)
    await writer.drain()


def place_of(url: str) -> str:
    """Host and port of a URL, to compare with."""
    try:
        split = urlsplit(url)
        port = split.port or (80 if split.scheme in ("http", "ws") else 443)
        return f"{(split.hostname or '').removesuffix('.')}:{port}"
    except ValueError:
        return url[:200]


def refused(url: str, reason: str) -> ToolFailure:
    """A policy said no."""
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"'{url[:200]}' may not be visited: {reason}. Do not try another way; explain this to "
        "the user.",
    )


def _too_much() -> ToolFailure:
    return ToolFailure(
        ErrorKind.TOO_LARGE,
        f"The pages of this session have brought in more than {MOST_BYTES:,} bytes. Close the "
        "browser and open only what you need.",
    )
