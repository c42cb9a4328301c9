"""`evoclaw edge`: run an edge agent on this machine, or join a fleet first."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CommandGroup
from evoclaw.cli.output import print_err
from evoclaw.cli.systemd_notify import READY, STOPPING, notify_systemd
from evoclaw.core.errors import ConfigError


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--config", type=FILE, metavar="FILE", show_default="agent.toml", help="Read this agent.toml"
)
@click.pass_context
def edge(context: click.Context, config: Path | None) -> int:
    """Run an edge agent until SIGINT or SIGTERM."""
    if context.invoked_subcommand is not None:
        return exits.OK
    path = config or Path("agent.toml")
    return asyncio.run(_serve(path if config or path.exists() else None))


@edge.command("join", help="Join a fleet with the token or link of `evoclaw agents invite`")
@click.argument("url", help="Link, or broker such as mqtt://192.0.2.7:1883")
@click.option("--token", metavar="TOKEN", help="Join with this one-time token; a link contains it")
@click.option("--ca-file", type=FILE, metavar="FILE", help="Trust this CA for the broker")
@click.option(
    "--config", type=FILE, default=Path("agent.toml"), metavar="FILE", help="Write this file"
)
@click.option(
    "--capabilities",
    default="file_read",
    metavar="A,B",
    help="Grant these capabilities to tools here; `*` grants all",
)
def _join(
    url: str, token: str | None, ca_file: Path | None, config: Path, capabilities: str
) -> int:
    from evoclaw.wiring.pairing import join_fleet

    granted = [name.strip() for name in capabilities.split(",") if name.strip()]
    broker, secret = _invitation(url, token)
    trusted = None if ca_file is None else ca_file.absolute()
    name = asyncio.run(join_fleet(broker, secret, config, granted, os.environ, ca_file=trusted))
    print_err(f"joined as {name}; start the edge with: evoclaw edge --config {config}")
    return exits.OK


def _invitation(url: str, token: str | None) -> tuple[str, str]:
    """The broker's address and the token, from an invitation link or from both arguments."""
    from evoclaw.edge.joining import is_link, read_link

    if is_link(url):
        if token is not None:
            raise ConfigError("the link contains a token; leave --token out")
        return read_link(url)
    if token is None:
        raise ConfigError(
            "a token is missing: add --token TOKEN, or use the link of `evoclaw agents invite`"
        )
    return url, token


async def _serve(path: Path | None) -> int:
    from evoclaw.wiring.edge import open_edge

    async with open_edge(path, os.environ) as opened:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, opened.stop)
        name = opened.parts.identity.agent_id
        print_err(f"edge {name}: {len(opened.parts.executor.tools())} tools")
        notify_systemd(READY)
        await opened.run()
        notify_systemd(STOPPING)
        print_err(f"edge {name}: stopped")
    return exits.OK
