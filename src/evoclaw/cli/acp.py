"""`evoclaw acp`: serve sessions of this machine to an editor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import click

from evoclaw.cli import exits
from evoclaw.cli.options import ExclusiveCommand
from evoclaw.cli.output import print_err
from evoclaw.core.errors import ConfigError
from evoclaw.governance.autonomy import Level
from evoclaw.wiring.acp import AcpOptions, acp_over_stdio


@click.command(cls=ExclusiveCommand, exclusive=(("yes", "read_only"),))
@click.option(
    "--model",
    metavar="PROVIDER/MODEL",
    show_default="the first model found",
    help="Use this model; `A,B` falls back to B when A fails",
)
@click.option("--tools", metavar="A,B", show_default="all", help="Offer only these tools")
@click.option("--yes", is_flag=True, help="Open sessions in the mode that does not ask")
@click.option("--read-only", is_flag=True, help="Deny calls that write or execute, in every mode")
def acp(model: str | None, tools: str | None, *, yes: bool, read_only: bool) -> int:
    """Serve sessions to an editor."""
    names = [name.strip() for name in (tools or "").split(",")]
    options = AcpOptions(
        model,
        Level.of_flags(read_only=read_only, yes=yes),
        None if tools is None else tuple(name for name in names if name),
    )
    if sys.stdin.isatty():
        print_err("waiting for an editor on standard input; see docs/guides/editors.md")
    try:
        return asyncio.run(_serve(options))
    except ImportError as missing:
        raise ConfigError(
            f"ACP support is not installed: pip install 'evoclaw[acp]' ({missing})"
        ) from None


async def _serve(options: AcpOptions) -> int:
    serving = asyncio.create_task(acp_over_stdio(options, os.environ))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()
    return exits.OK
