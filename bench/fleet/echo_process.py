"""The remote side of a round trip, as a process: a bare MQTT client that echoes, or a light edge.

python -m bench.fleet.echo_process bare PORT
python -m bench.fleet.echo_process edge PORT FOLDER durable|fast|profiled
"""

import asyncio
import signal
import sys
from pathlib import Path

from bench.fleet.bare_client import PING, PONG, connected
from bench.fleet.profiling import profile
from tests.support.light_edges import light_edge, marking_tool

from evoclaw.edge.device import DeviceLimits
from evoclaw.transport.address import Address

EDGE_CONCURRENCY = 64


async def bare(port: int, stop: asyncio.Event) -> None:
    """Echo messages."""
    async with connected("echo", port) as client:

        def echo(_client: object, _topic: str, payload: bytes, _qos: int, _more: object) -> int:
            client.publish(PONG, payload, qos=1)
            return 0

        client.on_message = echo
        client.subscribe(PING, qos=1)
        await stop.wait()


async def edge(port: int, folder: Path, durable: bool, stop: asyncio.Event) -> None:
    """Serve a no-op tool."""
    limits = DeviceLimits(concurrency=EDGE_CONCURRENCY, queue=10 * EDGE_CONCURRENCY)
    address = Address("127.0.0.1", port)
    async with light_edge("pi", address, folder, limits=limits, durable=durable):
        await stop.wait()


async def marks(port: int, folder: Path, stop: asyncio.Event) -> None:
    """Serve a tool that appends its argument to a file, with the default limits of an edge."""
    tools = [marking_tool(folder / "marks")]
    address = Address("127.0.0.1", port)
    async with light_edge("pi", address, folder, tools=tools, durable=True):
        await stop.wait()


async def main() -> None:
    """Run the side that the command line names until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kind, port, *rest = sys.argv[1:]
    if kind == "bare":
        await bare(int(port), stop)
    elif kind == "marks":
        await marks(int(port), Path(rest[0]), stop)
    elif rest[1] == "profiled":
        with profile("the edge"):
            await edge(int(port), Path(rest[0]), False, stop)
    else:
        await edge(int(port), Path(rest[0]), rest[1] == "durable", stop)


if __name__ == "__main__":
    asyncio.run(main())
