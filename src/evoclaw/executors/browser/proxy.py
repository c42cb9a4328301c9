"""`GuardedProxy`: a browser's only egress; it connects to judged addresses and to nothing else.

A browser resolves names and follows redirects itself, so a URL that was judged beforehand may lead
elsewhere when the browser requests it. Here every connection is judged when it is made, and made to
the very address that was judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import urlsplit

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors import tunnels
from evoclaw.executors.tunnels import END_OF_HEAD, HEAD_TIMEOUT_S, MAX_HEAD_BYTES
from evoclaw.executors.url_guard import UrlGuard, UrlTarget

MayVisit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Why a URL may not be visited; None if it may."""

MAX_PROXY_BYTES = 256 << 20
"""Bytes that one session may receive before it must be closed."""
MAX_REMEMBERED_REFUSALS = 100


class GuardedProxy:
    """An HTTP proxy on the loopback, for one session of one browser."""

    def __init__(self, guard: UrlGuard, *, may_visit: MayVisit | None = None) -> None:
        """Set the rules.

        Args:
            guard: Which addresses may be connected to.
            may_visit: Called for every URL as well; for HTTPS it sees only the host.
        """
        self._guard, self._may_visit = guard, may_visit
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._received = 0
        self.refusals: dict[str, ToolFailure] = {}
        """The failures by `host:port`; the latest last."""

    @property
    def address(self) -> str:
        """The proxy URL for the browser."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, limit=MAX_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def judge(self, url: str) -> UrlTarget:
        """The target of a URL, if it may be visited; a refusal is recorded and raised."""
        try:
            if self._received > MAX_PROXY_BYTES:
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
        """Record why a URL was refused, to explain why the page did not load."""
        if len(self.refusals) >= MAX_REMEMBERED_REFUSALS:
            del self.refusals[next(iter(self.refusals))]
        target = target_of(url)
        self.refusals.pop(target, None)
        self.refusals[target] = failure

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            # A peer disconnected or sent garbage: the browser sees a broken connection.
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only `close` cancels; asyncio's server would log this as an error.
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(END_OF_HEAD)
        method, _, rest = head.partition(b" ")
        place = rest.partition(b" ")[0].decode("latin-1")
        tunnel = method == b"CONNECT"
        try:
            target = await self.judge(f"https://{place}/" if tunnel else place)
        except ToolFailure:
            # Without a body, so that the browser shows its own error page.
            await tunnels.answer(writer, "403 Forbidden")
            return
        try:
            there, back = await tunnels.connect(target)
        except OSError:
            await tunnels.answer(writer, "502 Bad Gateway")
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                back.write(tunnels.for_the_server(head))
            up = asyncio.create_task(tunnels.carry(reader, back, _uncounted))
            bring = tunnels.carry if tunnel else tunnels.bring_answer
            down = asyncio.create_task(bring(there, writer, self._count))
            await tunnels.join(up, down, back)
        finally:
            back.close()

    def _count(self, size: int) -> bool:
        self._received += size
        return self._received <= MAX_PROXY_BYTES


def _uncounted(_size: int) -> bool:
    return True


def target_of(url: str) -> str:
    """Host and port of a URL, for comparison."""
    try:
        split = urlsplit(url)
        port = split.port or (80 if split.scheme in ("http", "ws") else 443)
        return f"{(split.hostname or '').removesuffix('.')}:{port}"
    except ValueError:
        return url[:200]


def refused(url: str, reason: str) -> ToolFailure:
    """The error when a policy denied a URL."""
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"'{url[:200]}' may not be visited: {reason}. Do not try another way; explain this to "
        "the user.",
    )


def _too_much() -> ToolFailure:
    return ToolFailure(
        ErrorKind.TOO_LARGE,
        f"The pages of this session have loaded more than {MAX_PROXY_BYTES:,} bytes. Close the "
        "browser and open only what you need.",
    )
