"""A TCP proxy before PostgreSQL that delays both directions and counts round trips.

`python -m bench.scale.delay_proxy PORT` prints its port. It answers each line on its standard
input, a JSON object, with its counts as JSON; `{"rtt_ms": 2}` sets the delay of a round trip.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bench.scale.wire_counts import LISTENING, WireConnection, WireCounts

ROOT = Path(__file__).parent.parent.parent
PRIORITY = 1
"""The real-time priority of the proxy: a busy machine must not make the network slower."""


@dataclass
class Network:
    """The delay of one direction, and what passed."""

    delay_s: float = 0.0
    counts: WireCounts = field(default_factory=WireCounts)
    late_s: float = 0.0
    """The sum of the seconds by which pieces of data were forwarded too late."""
    forwarded: int = 0


class Direction(asyncio.Protocol):
    """Receives the bytes of one end, and sends them to the other end after the delay."""

    def __init__(self, network: Network, count: Callable[[bytes], None]) -> None:
        self._network, self._count = network, count
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.transport: asyncio.Transport | None = None
        """The own end."""
        self.target: asyncio.Transport | None = None
        """The other end, once it is connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The own end is connected."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Count the bytes, and queue them."""
        self._count(data)
        self._put(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end after everything that was sent."""
        self._put(b"")

    def connect_to(self, target: asyncio.Transport) -> None:
        """Forward to this end from now on."""
        self.target = target
        self._forward()

    def _put(self, data: bytes) -> None:
        # A shorter delay must not let bytes overtake others.
        self._due = max(self._due, time.monotonic() + self._network.delay_s)
        self._queue.append((self._due, data))
        if self._timer is None and self.target is not None:
            self._forward()

    def _forward(self) -> None:
        """Send everything that is due, and wait for the rest."""
        self._timer, target = None, self.target
        assert target is not None
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            due, data = self._queue.popleft()
            self._network.late_s += now - due
            self._network.forwarded += 1
            if data:
                target.write(data)
            else:
                target.close()
        if self._queue:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._queue[0][0], self._forward)


class Client(Direction):
    """The end of a client: opens the connection to the server."""

    def __init__(self, network: Network, port: int, opening: set[asyncio.Task[None]]) -> None:
        self._wire = WireConnection(network.counts)
        super().__init__(network, self._wire.client_sent)
        self._port, self._opening = port, opening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server as well."""
        super().connection_made(transport)
        task = asyncio.create_task(self._open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        try:
            server, answers = await loop.create_connection(
                lambda: Direction(self._network, self._wire.server_sent), "127.0.0.1", self._port
            )
        except OSError:
            self.transport.abort()  # as the server itself would refuse it
            return
        answers.connect_to(self.transport)
        self.connect_to(server)


async def serve(port: int) -> None:
    """Serve until the standard input ends."""
    network, opening = Network(), set[asyncio.Task[None]]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(network, port, opening), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request: dict[str, Any] = json.loads(line)
        if "rtt_ms" in request:
            network.delay_s = request["rtt_ms"] / 2000
            network.late_s, network.forwarded = 0.0, 0
        print(json.dumps(report(network)), flush=True)


def report(network: Network) -> dict[str, Any]:
    """The counts so far."""
    counts = network.counts
    by_name = {name: count for name, count in counts.round_trips.items() if name != LISTENING}
    return {
        "round_trips": sum(by_name.values()),
        "by_connection": by_name,
        "listening": counts.round_trips[LISTENING],
        "executed": counts.executed,
        "committed": counts.committed,
        "rolled_back": counts.rolled_back,
        "late_ms": round(1e3 * network.late_s / max(1, network.forwarded), 3),
        "forwarded": network.forwarded,
    }


class DelayProxy:
    """The proxy in its own process; use as a context manager."""

    def __init__(self, upstream_port: int) -> None:
        argv = [sys.executable, "-m", "bench.scale.delay_proxy", str(upstream_port)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        first = self._output.readline()
        if not first:
            raise RuntimeError(f"the delaying proxy exited with {self._process.wait(20)}")
        self.port, self.pid = int(first), self._process.pid

    def __enter__(self) -> DelayProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._input.close()
        self._process.kill()
        self._process.wait(20)
        self._output.close()

    def delay(self, rtt_ms: float) -> None:
        """Set the delay of a round trip."""
        self._ask({"rtt_ms": rtt_ms})

    def counts(self) -> dict[str, Any]:
        """The counts so far."""
        return self._ask({})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._input.write(json.dumps(request) + "\n")
        self._input.flush()
        line = self._output.readline()
        if not line:
            raise RuntimeError(f"the delaying proxy exited with {self._process.wait(20)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop with exact timers: epoll would round the delays up to milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main() -> None:
    """Serve with priority, if the user may have it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        print("only root gives the proxy priority: delays may be longer", file=sys.stderr)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
