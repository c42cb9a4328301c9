"""`Gateway`: the proxy through which alone a cage reaches the network, and only what is allowed.

It listens on a socket in the file system that is put into the cage. Every request is judged when
it is made: its host by the allowlist, its port, and every address that the name leads to; and the
connection is made to the very address that was judged.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors import tunnels as carrying
from evoclaw.executors.tunnels import END, HEAD_SECONDS, LONGEST_HEAD, port_of
from evoclaw.executors.url_guard import Guard, MayReach, Target, read_url
from evoclaw.sandbox.egress.requests import Asked, Unreadable, carry_body, read_head

WEB_PORTS = (80, 443)
SOCKET = "egress.sock"


class Passage(Struct, frozen=True):
    """One connection that was asked for, when it is over."""

    host: str
    port: int
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    refused: str = ""
    """Why it was not made, or not to its end; empty: it was."""


Passed: TypeAlias = Callable[[Passage], None]
"""Told of every passage: for the audit and for budgets."""


class EgressLimits(Struct, frozen=True):
    """What may pass."""

    connections: int = 64
    """At once."""
    connection_bytes: int = 256 << 20
    """Of one connection, both ways."""
    total_bytes: int = 1 << 30
    """Of all connections together, both ways."""
    seconds: float = 600.0
    """Of one connection."""
    idle_seconds: float = 60.0
    """Without a byte either way."""


class Gateway:
    """An HTTP proxy (requests and CONNECT) on a socket in a folder of its own."""

    def __init__(
        self,
        may: MayReach,
        *,
        guard: Guard | None = None,
        ports: Collection[int] = WEB_PORTS,
        limits: EgressLimits | None = None,
        passed: Passed | None = None,
    ) -> None:
        """Set the rules.

        Args:
            may: The allowlist.
            guard: Which addresses may be connected to; only the public internet if not given.
            ports: Which ports may be connected to.
            limits: What may pass.
            passed: Told of every passage.
        """
        self._may, self._guard = may, guard or Guard()
        self._ports, self._limits = frozenset(ports), limits or EgressLimits()
        self._passed = passed
        self._folder: str = ""
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._total = 0

    @property
    def socket(self) -> str:
        """Its path, for `Confines.proxy`."""
        assert self._folder, "the gateway was not started"
        return str(Path(self._folder) / SOCKET)

    async def start(self) -> None:
        """Begin to listen.

        The folder is ours alone, the socket everybody's: a cage runs as somebody else, and has
        the socket put before it without the folder.
        """
        self._folder = tempfile.mkdtemp(prefix="evoclaw-egress-")
        self._server = await asyncio.start_unix_server(
            self._accept, self.socket, limit=LONGEST_HEAD
        )
        os.chmod(self.socket, 0o666)  # noqa: PTH101 - one quick call

    async def close(self) -> None:
        """Stop listening, cut every connection and take the socket away."""
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
            # A neighbour went away or talks nonsense.
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only `close` cancels, and the server would report it as somebody's fault.
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(END)
        if len(self._serving) > self._limits.connections:
            await carrying.answer(
                writer, "503 Service Unavailable", "Too many connections at once."
            )
            return
        try:
            asked = read_head(head)
        except Unreadable as problem:
            self._tell(Passage("", 0, refused=str(problem)))
            await carrying.answer(writer, "400 Bad Request", f"Not passed on: {problem}.")
            return
        passing = _Passing(asked, self._limits)
        try:
            target = await self._judge(asked)
            there, back = await carrying.connect(target)
        except ToolFailure as failure:
            passing.refused = failure.message
            await carrying.answer(writer, "403 Forbidden", failure.message)
        except OSError as problem:
            passing.refused = f"no connection: {problem}"
            await carrying.answer(writer, "502 Bad Gateway", f"'{passing.host}': {problem}")
        else:
            try:
                await self._pass(passing, head, (reader, writer), (there, back))
            finally:
                back.close()
        finally:
            self._tell(passing.over())

    async def _judge(self, asked: Asked) -> Target:
        """Where a request leads, if it may go there."""
        host, port = (read_url(asked.url).raw_host or ""), port_of(asked.url)
        if port not in self._ports:
            raise _denied(f"{host}:{port}", "this port is not open to commands")
        if not self._may(host):
            raise _denied(host, "it is not on the list of hosts that commands may reach")
        if self._total >= self._limits.total_bytes:
            raise _denied(host, f"{self._limits.total_bytes:,} bytes have passed, and no more may")
        return await self._guard.target(asked.url)

    async def _pass(
        self,
        passing: _Passing,
        head: bytes,
        near: carrying.Streams,
        far: carrying.Streams,
    ) -> None:
        (reader, writer), (there, back) = near, far
        sent, received = self._counter(passing, out=True), self._counter(passing, out=False)
        if passing.asked.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            up = asyncio.create_task(carrying.carry(reader, back, sent))
            down = asyncio.create_task(carrying.carry(there, writer, received))
        else:
            request = carrying.for_the_server(head)
            back.write(request)
            sent(len(request))
            up = asyncio.create_task(_request_body(passing.asked, reader, back, sent))
            down = asyncio.create_task(carrying.bring_answer(there, writer, received))
        passing.ways = (up, down)
        watch = asyncio.create_task(passing.watch())
        try:
            await carrying.join(up, down, back)
        except asyncio.CancelledError:
            if not passing.refused:
                raise
            writer.transport.abort()
        finally:
            watch.cancel()

    def _counter(self, passing: _Passing, *, out: bool) -> carrying.Count:
        def count(size: int) -> bool:
            self._total += size
            passing.add(size, out=out)
            if self._total > self._limits.total_bytes:
                passing.cut("too many bytes in all")
            return not passing.refused

        return count

    def _tell(self, passage: Passage) -> None:
        if self._passed is not None:
            self._passed(passage)


class _Passing:
    """A passage while it goes on."""

    def __init__(self, asked: Asked, limits: EgressLimits) -> None:
        split = urlsplit(asked.url)
        self.asked, self._limits = asked, limits
        self.host = (split.hostname or "").removesuffix(".")
        self._port = port_of(asked.url)
        self._sent = self._received = 0
        self._began = self._last = time.monotonic()
        self.refused = ""
        self.ways: tuple[asyncio.Task[None], ...] = ()

    def add(self, size: int, *, out: bool) -> None:
        """Count bytes."""
        self._last = time.monotonic()
        if out:
            self._sent += size
        else:
            self._received += size
        if self._sent + self._received > self._limits.connection_bytes:
            self.cut("too many bytes in one connection")

    def cut(self, why: str) -> None:
        """End it, both ways at once."""
        self.refused = self.refused or why
        for way in self.ways:
            way.cancel()

    async def watch(self) -> None:
        """Cut the passage when it has taken too long, or nothing has come for too long."""
        while True:
            now = time.monotonic()
            left = self._began + self._limits.seconds - now
            idle = self._last + self._limits.idle_seconds - now
            if min(left, idle) <= 0:
                break
            await asyncio.sleep(min(left, idle))
        self.cut("it took too long" if left <= 0 else "nothing came for too long")

    def over(self) -> Passage:
        """What is to be remembered of it."""
        seconds = time.monotonic() - self._began
        return Passage(
            self.host, self._port, self._sent, self._received, seconds, self.refused[:500]
        )


async def _request_body(
    asked: Asked, reader: asyncio.StreamReader, back: asyncio.StreamWriter, sent: carrying.Count
) -> None:
    """Pass on the body of one request; what follows it goes nowhere."""
    try:
        await carry_body(asked, reader, back, sent)
    except Unreadable:
        back.transport.abort()
    while await reader.read(carrying.PIECE):
        # A second request on the same connection: it was not judged, and we said we would close.
        continue


def _denied(place: str, why: str) -> ToolFailure:
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"'{place[:200]}' was not contacted: {why}. Do not try another way; explain this to the "
        "user.",
    )
