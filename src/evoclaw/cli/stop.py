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
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.stop_notice import describe_stop
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError, EvoClawError
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
    force: bool
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
@click.option("--force", is_flag=True, help="Stop an agent even if no agent or edge has its name")
@json_option("Print JSON, with --list")
def stop(**options: Any) -> int:
    """Stop something, release it, or list what is stopped."""
    return asyncio.run(_stop(StopOptions(**options)))


async def _stop(options: StopOptions) -> int:
    from evoclaw.wiring.oversight import open_stops, stop_file

    wanted: Stop | None = None
    if not options.show_list and not options.release:
        kind, name = _target(options)
        if kind is StopKind.AGENT and not options.force:
            await _check_agent(name)
        wanted = Stop(kind, name, options.reason, identify_answerer().name, time.time())
        # Stop this machine before the store is opened: it may be unreachable.
        stop_file(os.environ).put(wanted)
    try:
        async with open_stops(os.environ) as board:
            return await _stop_or_release(board, wanted, options)
    except ConfigError:
        if wanted is not None:
            print_out(f"stopped on this machine: {clean(wanted.subject)}")
        raise


async def _stop_or_release(board: StopRegistry, wanted: Stop | None, options: StopOptions) -> int:
    if options.show_list:
        _list(board, options)
        return exits.OK
    kind, name = _target(options)
    if wanted is not None:
        await board.put(wanted)
        print_out(f"stopped: {clean(wanted.subject)}")
        if kind is StopKind.TOOL:
            _warn_of_similar_tool(name)
        if kind in (StopKind.TOOL, StopKind.NETWORK):
            print_out("calls that have started run to their end; --all stops them too")
        return exits.OK
    by = identify_answerer()
    if by.kind != "person":
        raise ConfigError("only a person may release a stop, not a command of an agent")
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


async def _check_agent(name: str) -> None:
    """Refuse a name that no agent and no edge has: a typo must not look like a stop."""
    from evoclaw.skills.names import unknown_name
    from evoclaw.wiring.oversight import known_agent_names

    try:
        known = await known_agent_names(os.environ)
    except EvoClawError as problem:
        print_err(f"the name is not checked: {problem}")  # an emergency stop must not fail for it
        return
    if name not in known:
        raise ConfigError(
            f"{unknown_name('agent or edge', name, known)}\n"
            "Nothing was stopped. Use --all to stop everything, or add --force to this name."
        )


def _warn_of_similar_tool(name: str) -> None:
    """Name the built-in tool that may be meant; skills, servers and edges have tools too."""
    from difflib import get_close_matches

    from evoclaw.tools.catalogue import CATALOGUE

    if name not in CATALOGUE and (similar := get_close_matches(name, CATALOGUE, 1)):
        print_err(
            f"warning: {clean(name)!r} is not a built-in tool; if you mean {similar[0]!r}, "
            f"use `evoclaw stop --tool {similar[0]}`"
        )


def _list(board: StopRegistry, options: StopOptions) -> None:
    stops = board.stops()
    if options.as_json:
        print_out([msgspec.to_builtins(stop) for stop in stops])
        return
    for stop in stops:
        print_out(describe_stop(stop))
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
