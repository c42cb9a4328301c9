"""`evoclaw up`: a broker, an orchestrator with its service, and an edge, in one terminal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.needs import House, Wiring
from evoclaw.cli.notify import READY, RELOADING, STOPPING, notify
from evoclaw.cli.render import tell
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.orchestrator.fleet.fleet import Presence

YOUNG = 10_000
"""New objects after which the collector looks for garbage: a thousand runs at once have many."""


SWITCH = 0.0005
"""Seconds that the loop may keep the interpreter to itself while the thread wants it that speaks
to the store: with Python's five milliseconds, everybody waits for that thread more often."""


def up(options: Namespace, wiring: Wiring) -> int:
    """Stay up until told to stop."""
    sys.setswitchinterval(SWITCH)
    return asyncio.run(_up(options, Path(options.folder).resolve(), wiring))


async def _up(options: Namespace, workspace: Path, wiring: Wiring) -> int:
    parts = wiring.bring_up(
        host=options.host,
        port=options.port,
        engine=options.engine,
        agent_id=None if options.no_edge else options.name,
        workspace=workspace,
        model=options.model,
        tls=_tls(options),
        api=_api(options),
        env=os.environ,
    )
    async with parts as house:
        tell(f"broker on {house.url}")
        if house.api:
            tell(f"service on {house.api}, described on {house.api}/docs; `evoclaw chat` talks")
            tell(f"page: {house.api}/ (`evoclaw page` gives a link that logs in)")
        for member in house.orchestrator.fleet.online():
            tell(f"edge {member.agent_id}: online")  # it was quicker than the rest
        house.orchestrator.listen(_show)
        notify(READY)
        with little_to_collect():
            await _stay(house)
        tell("leaving")
    return exits.OK


@contextmanager
def little_to_collect() -> Generator[None]:
    """What is built by now stays: the garbage collector need not walk all of it again and again."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _stay(house: House) -> None:
    """Until told to leave; then what goes on may end, unless told again."""
    stop, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        (again if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop)
    loop.add_signal_handler(signal.SIGHUP, _reload, house)
    await stop.wait()
    notify(STOPPING)
    if (live := house.live) > 0:
        tell(f"still going on: {live}; interrupt again to leave that for the next start")
    draining = asyncio.create_task(house.drain())
    waiting = asyncio.create_task(again.wait())
    await asyncio.wait((draining, waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, waiting):
        task.cancel()
    await asyncio.wait((draining, waiting))


def _reload(house: House) -> None:
    """Read the settings again; what is wrong with them changes nothing."""
    notify(RELOADING)
    try:
        tell(house.reload())
    except EvoClawError as problem:
        tell(f"evoclaw: the settings stay as they were: {problem}")
    notify(READY)


def _api(options: Namespace) -> dict[str, object] | None:
    """What was said about the service beside the settings; None is no service."""
    if options.no_api:
        return None
    said = {"host": options.api_host, "port": options.api_port}
    return {name: value for name, value in said.items() if value is not None}


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
