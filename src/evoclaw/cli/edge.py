"""`evoclaw edge`: be one of the hands."""

from __future__ import annotations

import asyncio
import os
import signal
from argparse import Namespace
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.needs import Wiring
from evoclaw.cli.notify import READY, STOPPING, notify
from evoclaw.cli.render import tell
from evoclaw.core.errors import ConfigError
from evoclaw.edge.invitations import is_link, read_link


def edge(options: Namespace, wiring: Wiring) -> int:
    """Serve until told to stop, or join a fleet first."""
    if options.action == "join":
        ca_file = Path(options.ca_file).absolute() if options.ca_file else None
        return asyncio.run(_join(options, ca_file, wiring))
    path = Path(options.config or "agent.toml")
    return asyncio.run(_serve(path if options.config or path.exists() else None, wiring))


async def _join(options: Namespace, ca_file: Path | None, wiring: Wiring) -> int:
    held = [name.strip() for name in options.capabilities.split(",") if name.strip()]
    path = Path(options.config)
    url, token = _invitation(options)
    name = await wiring.join(url, token, path, held, os.environ, ca_file=ca_file)
    tell(f"joined as {name}; serve with: evoclaw edge --config {path}")
    return exits.OK


def _invitation(options: Namespace) -> tuple[str, str]:
    """The broker's address and the token, however they were given."""
    if is_link(options.url):
        if options.token is not None:
            raise ConfigError("the link has a token in it; say the link alone")
        return read_link(options.url)
    if options.token is None:
        raise ConfigError("say --token TOKEN, or the link that `evoclaw agents invite` printed")
    return options.url, options.token


async def _serve(path: Path | None, wiring: Wiring) -> int:
    async with wiring.open_edge(path, os.environ) as edge:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, edge.stop)
        tell(f"edge {edge.parts.who.agent_id}: {len(edge.parts.executor.tools())} tools")
        notify(READY)
        await edge.run()
        notify(STOPPING)
        tell(f"edge {edge.parts.who.agent_id}: gone")
    return exits.OK
