"""Many light edges in one process: `python -m bench.fleet.light_edges PORT FOLDER FIRST COUNT`."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.light_edges import light_edge

from evoclaw.transport.address import Address


def name_of(number: int) -> str:
    """The id of an edge."""
    return f"edge-{number:04d}"


async def main() -> None:
    """Run the edges until SIGTERM."""
    port, folder, first, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    address = Address("127.0.0.1", int(port))
    async with AsyncExitStack() as stack:
        for number in range(first, first + count):
            await stack.enter_async_context(light_edge(name_of(number), address, folder))
        await stop.wait()
        sys.stdout.flush()
        # Skip a thousand sequential disconnects.
        stack.pop_all()


if __name__ == "__main__":
    asyncio.run(main())
