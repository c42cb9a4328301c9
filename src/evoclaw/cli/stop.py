"""`evoclaw stop`: the emergency stop, and its release."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import click
import msgspec
from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.options import ExclusiveCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError
from evoclaw.governance.shared_stops import StopRegistry
from evoclaw.governance.stops import Stop, StopKind


class StopOptions(Struct, frozen=True):
    """What to stop, release or list."""

    stop_all: bool
    agent: str | None
    tool: str | None
    network: bool
    show_list: bool
    release: bool
    reason: str
    as_json: bool


@click.command(
    cls=ExclusiveCommand,
    exclusive=(("stop_all", "agent", "tool", "network", "show_list"),),
    one_required=True,
)
@click.option("--all", "stop_all", is_flag=True, help="Stop everything, and end what is running")
@click.option("--agent", metavar="ID", help="Stop an agent or edge, and end what it is running")
@click.option("--tool", metavar="NAME", help="Stop new calls of a tool")
@click.option("--network", is_flag=True, help="Stop new calls that can reach the network")
@click.option("--list", "show_list", is_flag=True, help="List what is stopped")
@click.option("--release", is_flag=True, help="Release the stop instead")
@click.option(
    "--reason", default="", metavar="TEXT", show_default=False, help="Tell models and people why"
)
@json_option("Print JSON, with --list")
def stop(**options: Any) -> int:
    """Stop something, release it, or list what is stopped."""
    return asyncio.run(_stop(StopOptions(**options)))


async def _stop(options: StopOptions) -> int:
    from evoclaw.wiring.oversight import open_stops, stop_file

    wanted: Stop | None = None
    if not options.show_list and not options.release:
        kind, name = _target(options)
        wanted = Stop(kind, name, options.reason, identify_answerer().name, time.time())
        # Stop this machine before the store is opened: it may be unreachable.
        stop_file(os.environ).put(wanted)
    async with open_stops(os.environ) as board:
        return await _stop_or_release(board, wanted, options)


async def _stop_or_release(board: StopRegistry, wanted: Stop | None, options: StopOptions) -> int:
    if options.show_list:
        _list(board, options)
        return exits.OK
    kind, name = _target(options)
    if wanted is not None:
        await board.put(wanted)
        print_out(f"stopped: {clean(wanted.subject)}")
        if kind in (StopKind.TOOL, StopKind.NETWORK):
            print_out("calls that have started run to their end; --all stops them too")
        return exits.OK
    by = identify_answerer()
    if by.kind != "person":
        raise ConfigError("only a person may release a stop; an agent never does so for itself")
    found = await board.release(kind, name)
    if found is None:
        raise ConfigError(
            f"{clean(Stop(kind, name).subject)} is not stopped; see `evoclaw stop --list`"
        )
    print_out(
        f"released: {clean(found.subject)}" + (f" ({clean(found.reason)})" if found.reason else "")
    )
    if left := board.stops():
        print_out(f"still stopped: {clean(', '.join(stop.subject for stop in left))}")
    return exits.OK


def _list(board: StopRegistry, options: StopOptions) -> None:
    stops = board.stops()
    if options.as_json:
        print_out([msgspec.to_builtins(stop) for stop in stops])
        return
    for stop in stops:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stop.at))
        reason = f": {clean(stop.reason)}" if stop.reason else ""
        print_out(f"{clean(stop.subject)}, by {clean(stop.by) or 'an unknown user'} {at}{reason}")
    if not stops:
        print_out("nothing is stopped")


def _target(options: StopOptions) -> tuple[StopKind, str]:
    chosen = [
        (kind, name or "")
        for kind, name in (
            (StopKind.ALL, "" if options.stop_all else None),
            (StopKind.AGENT, options.agent),
            (StopKind.TOOL, options.tool),
            (StopKind.NETWORK, "" if options.network else None),
        )
        if name is not None
    ]
    if len(chosen) != 1:
        raise ConfigError("name what to stop: --all, --agent ID, --tool NAME or --network")
    kind, name = chosen[0]
    if kind in (StopKind.AGENT, StopKind.TOOL) and not name.strip():
        raise ConfigError(f"the name of the {kind} is empty; use --{kind} NAME")
    return kind, name.strip()
