"""A web server on the loopback that remembers what it was sent, and names that lead to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from evoclaw.executors.url_guard import UrlGuard
from evoclaw.sandbox.egress.gateway import EgressConnection, EgressGateway, EgressLimits
from tests.support.waiting import until

PATIENCE = 10.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Site:
    """The server."""

    def __init__(self, answer: bytes = ANSWER, *, endless: bool = False) -> None:
        self.requests: list[bytes] = []
        self.answer, self._endless = answer, endless
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        seen = len(self.requests)
        self.requests.append(b"")
        try:
            while piece := await reader.read(65536):
                self.requests[seen] += piece
                if self._endless:
                    while True:
                        writer.write(bytes(65536))
                        await writer.drain()
                if self.answer and self.requests[seen].endswith(b"\r\n\r\n"):
                    writer.write(self.answer)
                    return
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()
            self._serving.discard(task)


@asynccontextmanager
async def site(answer: bytes = ANSWER, *, endless: bool = False) -> AsyncGenerator[Site]:
    server = Site(answer, endless=endless)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


class Names:
    """A resolver of ours: names to addresses, one list after the other."""

    def __init__(self, known: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._known = {name: list(answers) for name, answers in known.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._known.get(host, [])
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class GatewayHarness:
    """A gateway and what was told of it."""

    def __init__(
        self,
        hosts: set[str],
        ports: Sequence[int],
        *,
        names: Names | None = None,
        loopback: bool = True,
        limits: EgressLimits | None = None,
    ) -> None:
        self.connections: list[EgressConnection] = []
        self.names = names or Names({host: [["127.0.0.1"]] for host in (*hosts, "denied.test")})
        guard = UrlGuard(["127.0.0.1/32"] if loopback else [], resolve=self.names)
        self.gateway = EgressGateway(
            hosts.__contains__,
            guard=guard,
            may_use_port=ports.__contains__,
            limits=limits,
            on_connection=self.connections.append,
        )

    async def ask(self, request: str | bytes) -> bytes:
        """Send something to the gateway and read until it closes."""
        text = request.encode() if isinstance(request, str) else request
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_unix_connection(self.gateway.socket)
            try:
                writer.write(text)
                answer = await reader.read()
            except ConnectionError:
                answer = b""
            finally:
                writer.close()
        return answer

    async def wait_for_reports(self, count: int = 1) -> list[EgressConnection]:
        """What was told, once it is this much."""
        await until(lambda: len(self.connections) >= count)
        return self.connections


@asynccontextmanager
async def open_gateway(
    *hosts: str,
    ports: Sequence[int],
    names: Names | None = None,
    loopback: bool = True,
    limits: EgressLimits | None = None,
) -> AsyncGenerator[GatewayHarness]:
    way = GatewayHarness(set(hosts), ports, names=names, loopback=loopback, limits=limits)
    await way.gateway.start()
    try:
        yield way
    finally:
        await way.gateway.close()
