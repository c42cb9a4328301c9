"""`evoclaw up`: a broker, an orchestrator and an edge in one terminal."""

from __future__ import annotations

import asyncio
import os
import signal
from argparse import Namespace
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.needs import Wiring
from evoclaw.cli.render import tell
from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.fleet import Presence


def up(options: Namespace, wiring: Wiring) -> int:
    """Stay up until told to stop."""
    return asyncio.run(_up(options, Path(options.folder).resolve(), wiring))


async def _up(options: Namespace, workspace: Path, wiring: Wiring) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parts = wiring.bring_up(
        host=options.host,
        port=options.port,
        engine=options.engine,
        agent_id=None if options.no_edge else options.name,
        workspace=workspace,
        model=options.model,
        tls=_tls(options),
        env=os.environ,
    )
    async with parts as house:
        tell(f"broker on {house.url}")
        house.orchestrator.listen(_show)
        await stop.wait()
        tell("leaving")
    return exits.OK


def _tls(options: Namespace) -> tuple[Path, Path, Path] | None:
    if (options.cert is None) != (options.key is None):
        raise ConfigError("--cert and --key go together")
    if options.cert is None:
        return None
    files = (options.cert, options.key, options.ca_file or options.cert)
    cert, key, ca_file = (Path(file).absolute() for file in files)
    return cert, key, ca_file


def _show(change: Presence) -> None:
    tell(f"edge {change.agent_id}: {'online' if change.online else 'offline'}")
