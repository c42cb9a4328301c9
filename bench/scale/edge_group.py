"""Many edges in one process: `python -m bench.scale.edge_group TOML…`.

Each edge is built as `evoclaw edge` builds it, with its own account, journal, workspace, rules and
receipts; only the process is shared.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from evoclaw.edge.edge import Edge
from evoclaw.wiring.edge import open_edge


async def serve(path: Path, edges: list[Edge]) -> None:
    """Run one edge until it is stopped."""
    async with open_edge(path, os.environ) as edge:
        edges.append(edge)
        await edge.run()


async def main() -> None:
    """Run all edges until a signal stops them."""
    edges: list[Edge] = []

    def stop() -> None:
        for edge in edges:
            edge.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    async with asyncio.TaskGroup() as group:
        for path in sys.argv[1:]:
            group.create_task(serve(Path(path), edges))


if __name__ == "__main__":
    asyncio.run(main())
