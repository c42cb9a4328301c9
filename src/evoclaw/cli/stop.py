"""`evoclaw stop`: the emergency stop, and its release."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.approvals import person_here
from evoclaw.cli.clean import clean
from evoclaw.cli.fleet import show
from evoclaw.core.errors import ConfigError
from evoclaw.governance.shared_stops import StopBoard
from evoclaw.governance.stops import Kind, Stop, StopFile


class Knows(Protocol):
    """Who knows where things are; imports go down only, so it is handed in."""

    def stop_file(self, env: Mapping[str, str]) -> StopFile:
        """The stops of this machine."""
        ...

    def open_stops(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[StopBoard]:
        """The same, with those of all who share its store."""
        ...


def stop(options: Namespace, wiring: Knows) -> int:
    """Stop something, release it, or list what is stopped."""
    return asyncio.run(_stop(options, wiring))


async def _stop(options: Namespace, wiring: Knows) -> int:
    wanted: Stop | None = None
    if not options.list and not options.release:
        kind, name = _what(options)
        wanted = Stop(kind, name, options.reason or "", person_here().name, time.time())
        # Before it is known whether anybody else can be told.
        wiring.stop_file(os.environ).put(wanted)
    async with wiring.open_stops(os.environ) as board:
        return await _on(board, wanted, options)


async def _on(board: StopBoard, wanted: Stop | None, options: Namespace) -> int:
    if options.list:
        _list(board, options)
        return exits.OK
    kind, name = _what(options)
    if wanted is not None:
        await board.put(wanted)
        show(f"stopped: {clean(wanted.what)}")
        if kind in (Kind.TOOL, Kind.NETWORK):
            show("calls that have begun go on to their end; --all ends them too")
        return exits.OK
    by = person_here()
    if by.kind != "person":
        raise ConfigError("only a person may release a stop; an agent never does so for itself")
    found = await board.release(kind, name)
    if found is None:
        raise ConfigError(f"{clean(Stop(kind, name).what)} was not stopped")
    show(f"released: {clean(found.what)}" + (f" ({clean(found.reason)})" if found.reason else ""))
    if left := board.stops():
        show(f"still stopped: {clean(', '.join(one.what for one in left))}")
    return exits.OK


def _list(board: StopBoard, options: Namespace) -> None:
    there = board.stops()
    if options.json:
        show([msgspec.to_builtins(one) for one in there])
        return
    for one in there:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))
        reason = f": {clean(one.reason)}" if one.reason else ""
        show(f"{clean(one.what)}, by {clean(one.by) or 'nobody known'} {at}{reason}")
    if not there:
        show("nothing is stopped")


def _what(options: Namespace) -> tuple[Kind, str]:
    chosen = [
        (kind, name or "")
        for kind, name in (
            (Kind.ALL, "" if options.all else None),
            (Kind.AGENT, options.agent),
            (Kind.TOOL, options.tool),
            (Kind.NETWORK, "" if options.network else None),
        )
        if name is not None
    ]
    if len(chosen) != 1:
        raise ConfigError("say what: --all, --agent ID, --tool NAME or --network")
    kind, name = chosen[0]
    if kind in (Kind.AGENT, Kind.TOOL) and not name.strip():
        raise ConfigError(f"say which {kind}")
    return kind, name.strip()
