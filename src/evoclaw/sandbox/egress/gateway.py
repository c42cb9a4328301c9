"""`EgressGateway`: the proxy that is a sandbox's only connection to the network.

It listens on a socket in the file system that is mounted into the sandbox. Every request is judged
when it is made: its host by the allowlist, its port, and every address that the name resolves to;
and the connection is made to exactly the address that was judged.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors import tunnels
from evoclaw.executors.tunnels import END_OF_HEAD, HEAD_TIMEOUT_S, MAX_HEAD_BYTES, port_of
from evoclaw.executors.url_guard import MayReach, UrlGuard, UrlTarget, read_url
from evoclaw.sandbox.egress.requests import MalformedRequest, ProxyRequest, carry_body, read_head

WEB_PORTS = (80, 443)
SOCKET_NAME = "egress.sock"


class EgressConnection(Struct, frozen=True):
    """The record of one requested egress connection, made when it has ended."""

    host: str
    port: int
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    refused: str = ""
    """Why it was refused or cut; empty if it was not."""


OnEgressConnection: TypeAlias = Callable[[EgressConnection], None]
"""Called with every connection when it has ended: for the audit and for budgets."""


class EgressLimits(Struct, frozen=True):
    """The limits of egress connections."""

    connections: int = 64
    """Concurrent connections."""
    connection_bytes: int = 256 << 20
    """Of one connection, both ways."""
    total_bytes: int = 1 << 30
    """Of all connections together, both ways."""
    seconds: float = 600.0
    """Of one connection."""
    idle_seconds: float = 60.0
    """Without a byte either way."""


class EgressGateway:
    """An HTTP proxy (requests and CONNECT) on a socket in a folder of its own."""

    def __init__(
        self,
        may: MayReach,
        *,
        guard: UrlGuard | None = None,
        may_use_port: Callable[[int], bool] = WEB_PORTS.__contains__,
        limits: EgressLimits | None = None,
        on_connection: OnEgressConnection | None = None,
    ) -> None:
        """Set what may be reached.

        Args:
            may: The allowlist.
            guard: Which addresses may be connected to; only the public internet if not given.
            may_use_port: Whether a port may be connected to; asked for every request.
            limits: The limits of connections.
            on_connection: Called with every connection when it has ended.
        """
        self._may, self._guard = may, guard or UrlGuard()
        self._may_use_port, self._limits = may_use_port, limits or EgressLimits()
        self._on_connection = on_connection
        self._folder: str = ""
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._total = 0

    @property
    def socket(self) -> str:
        """The path of its socket, for `SandboxPolicy.proxy`."""
        assert self._folder, "the gateway was not started"
        return str(Path(self._folder) / SOCKET_NAME)

    async def start(self) -> None:
        """Start to listen.

        The folder is private, the socket is open to all users: a sandbox runs as another user, and
        has the socket mounted without the folder.
        """
        self._folder = tempfile.mkdtemp(prefix="evoclaw-egress-")
        self._server = await asyncio.start_unix_server(
            self._accept, self.socket, limit=MAX_HEAD_BYTES
        )
        os.chmod(self.socket, 0o666)  # noqa: PTH101 - one quick call

    async def close(self) -> None:
        """Stop listening, cut every connection and remove the socket."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The client or the server closed the connection or sent garbage.
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only `close` cancels; asyncio would log it as an error.
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(END_OF_HEAD)
        if len(self._serving) > self._limits.connections:
            await tunnels.answer(
                writer, "503 Service Unavailable", "Too many concurrent connections."
            )
            return
        try:
            request = read_head(head)
        except MalformedRequest as problem:
            self._report(EgressConnection("", 0, refused=str(problem)))
            await tunnels.answer(writer, "400 Bad Request", f"Request rejected: {problem}.")
            return
        connection = _OpenConnection(request, self._limits)
        try:
            target = await self._judge(request)
            there, back = await tunnels.connect(target)
        except ToolFailure as failure:
            connection.refused = failure.message
            await tunnels.answer(writer, "403 Forbidden", failure.message)
        except OSError as problem:
            connection.refused = f"connection failed: {problem}"
            await tunnels.answer(writer, "502 Bad Gateway", f"'{connection.host}': {problem}")
        else:
            try:
                await self._pass(connection, head, (reader, writer), (there, back))
            finally:
                back.close()
        finally:
            self._report(connection.record())

    async def _judge(self, request: ProxyRequest) -> UrlTarget:
        """The target of a request, if it may be reached."""
        host, port = (read_url(request.url).raw_host or ""), port_of(request.url)
        if not self._may_use_port(port):
            raise _denied(f"{host}:{port}", "commands may not connect to this port")
        if not self._may(host):
            raise _denied(
                host, "it is not in `commands` of [network], the hosts that commands may reach"
            )
        if self._total >= self._limits.total_bytes:
            raise _denied(host, f"the limit of {self._limits.total_bytes:,} bytes is used up")
        return await self._guard.target(request.url)

    async def _pass(
        self,
        connection: _OpenConnection,
        head: bytes,
        near: tunnels.Streams,
        far: tunnels.Streams,
    ) -> None:
        (reader, writer), (there, back) = near, far
        sent, received = self._counter(connection, out=True), self._counter(connection, out=False)
        if connection.request.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            up = asyncio.create_task(tunnels.carry(reader, back, sent))
            down = asyncio.create_task(tunnels.carry(there, writer, received))
        else:
            request = tunnels.for_the_server(head)
            back.write(request)
            sent(len(request))
            up = asyncio.create_task(_request_body(connection.request, reader, back, sent))
            down = asyncio.create_task(tunnels.bring_answer(there, writer, received))
        connection.directions = (up, down)
        watch = asyncio.create_task(connection.watch())
        try:
            await tunnels.join(up, down, back)
        except asyncio.CancelledError:
            if not connection.refused:
                raise
            writer.transport.abort()
        finally:
            watch.cancel()

    def _counter(self, connection: _OpenConnection, *, out: bool) -> tunnels.Count:
        def count(size: int) -> bool:
            self._total += size
            connection.add(size, out=out)
            if self._total > self._limits.total_bytes:
                connection.cut("too many bytes in total")
            return not connection.refused

        return count

    def _report(self, connection: EgressConnection) -> None:
        if self._on_connection is not None:
            self._on_connection(connection)


class _OpenConnection:
    """An egress connection while it is open."""

    def __init__(self, request: ProxyRequest, limits: EgressLimits) -> None:
        split = urlsplit(request.url)
        self.request, self._limits = request, limits
        self.host = (split.hostname or "").removesuffix(".")
        self._port = port_of(request.url)
        self._sent = self._received = 0
        self._started = self._last = time.monotonic()
        self.refused = ""
        self.directions: tuple[asyncio.Task[None], ...] = ()

    def add(self, size: int, *, out: bool) -> None:
        """Count bytes sent or received."""
        self._last = time.monotonic()
        if out:
            self._sent += size
        else:
            self._received += size
        if self._sent + self._received > self._limits.connection_bytes:
            self.cut("too many bytes in one connection")

    def cut(self, why: str) -> None:
        """Cut it, in both directions."""
        self.refused = self.refused or why
        for direction in self.directions:
            direction.cancel()

    async def watch(self) -> None:
        """Cut the connection when it has lasted or been idle for too long."""
        while True:
            now = time.monotonic()
            remaining = self._started + self._limits.seconds - now
            idle = self._last + self._limits.idle_seconds - now
            if min(remaining, idle) <= 0:
                break
            await asyncio.sleep(min(remaining, idle))
        self.cut("it took too long" if remaining <= 0 else "it was idle for too long")

    def record(self) -> EgressConnection:
        """The record of it."""
        seconds = time.monotonic() - self._started
        return EgressConnection(
            self.host, self._port, self._sent, self._received, seconds, self.refused[:500]
        )


async def _request_body(
    request: ProxyRequest,
    reader: asyncio.StreamReader,
    back: asyncio.StreamWriter,
    sent: tunnels.Count,
) -> None:
    """Forward the body of one request; drop what follows it."""
    try:
        await carry_body(request, reader, back, sent)
    except MalformedRequest:
        back.transport.abort()
    while await reader.read(tunnels.READ_BYTES):
        # A second request on the connection was not judged, and the close was announced.
        continue


def _denied(target: str, why: str) -> ToolFailure:
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"'{target[:200]}' was not contacted: {why}. Do not try another way; explain this to the "
        "user.",
    )
