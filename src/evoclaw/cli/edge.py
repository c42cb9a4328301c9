"""`evoclaw edge`: be one of the hands."""

from __future__ import annotations

import asyncio
import os
import signal
from argparse import Namespace
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.needs import Wiring
from evoclaw.cli.render import tell


def edge(options: Namespace, wiring: Wiring) -> int:
    """Serve until told to stop."""
    path = Path(options.config or "agent.toml")
    return asyncio.run(_serve(path if options.config or path.exists() else None, wiring))


async def _serve(path: Path | None, wiring: Wiring) -> int:
    async with wiring.open_edge(path, os.environ) as edge:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, edge.stop)
        tell(f"edge {edge.parts.who.agent_id}: {len(edge.parts.executor.tools())} tools")
        await edge.run()
        tell(f"edge {edge.parts.who.agent_id}: gone")
    return exits.OK
