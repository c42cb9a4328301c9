"""`evoclaw up`: a broker, an orchestrator with its service, and an edge, in one terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.gc_settings import paused_gc, reduced_gc
from evoclaw.cli.options import FILE, CliCommand
from evoclaw.cli.output import print_err
from evoclaw.cli.progress import waiting
from evoclaw.cli.stop_notice import local_stops, stop_lines
from evoclaw.cli.systemd_notify import READY, RELOADING, STOPPING, notify_systemd
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.orchestrator.fleet.fleet import PresenceChange

if TYPE_CHECKING:
    from evoclaw.wiring.application import Application

THREAD_SWITCH_INTERVAL_S = 0.0005
"""Seconds until the event loop yields the interpreter to the thread of the store.

With Python's default of five milliseconds, runs wait longer for that thread."""


class UpOptions(Struct, frozen=True):
    """The options of `evoclaw up`."""

    host: str | None
    lan: str | None
    port: int
    cert: Path | None
    key: Path | None
    ca_file: Path | None
    engine: str
    name: str | None
    no_edge: bool
    folder: Path
    model: str
    api_host: str | None
    api_port: int | None
    no_api: bool


@click.command(cls=CliCommand)
@click.option(
    "--host", metavar="HOST", show_default="127.0.0.1", help="Bind the broker to this address"
)
@click.option(
    "--lan",
    is_flag=False,
    flag_value="lan",
    metavar="[ADDRESS]",
    show_default="this machine only",
    help="Serve edges on other machines, with TLS and a certificate authority of its own",
)
@click.option(
    "--port",
    type=int,
    default=0,
    metavar="PORT",
    show_default="a free port, then the same again",
    help="Bind the broker to this port",
)
@click.option("--cert", type=FILE, metavar="FILE", help="Use this TLS certificate for the broker")
@click.option("--key", type=FILE, metavar="FILE", help="Use this key of the certificate")
@click.option(
    "--ca-file",
    type=FILE,
    metavar="FILE",
    show_default="the certificate",
    help="Have edges trust this CA",
)
@click.option(
    "--engine",
    type=click.Choice(["nats", "mosquitto"]),
    default="nats",
    help="Run this broker",
)
@click.option(
    "--name",
    metavar="NAME",
    show_default="the host name at the first start",
    help="Name the edge on this machine",
)
@click.option("--no-edge", is_flag=True, help="Start no edge on this machine")
@click.option(
    "--folder", type=FILE, default=Path(), metavar="FOLDER", help="Let the edge work in this folder"
)
@click.option(
    "--model",
    default="",
    metavar="PROVIDER/MODEL",
    show_default=False,
    help="Let the edge answer prompts with this model",
)
@click.option(
    "--api-host", metavar="HOST", show_default="127.0.0.1", help="Bind the service to this address"
)
@click.option(
    "--api-port",
    type=int,
    metavar="PORT",
    show_default="8433",
    help="Bind the service to this port",
)
@click.option("--no-api", is_flag=True, help="Start no service, only a broker and its fleet")
def up(**options: Any) -> int:
    """Serve until SIGINT or SIGTERM."""
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    if sys.stdin.isatty() and sys.stderr.isatty():
        _offer_model()
    with paused_gc():
        return asyncio.run(_up(UpOptions(**options)))


def _offer_model() -> None:
    """At a terminal, offer to install a model if there is none; otherwise the service says how."""
    from evoclaw.cli.model_offer import offer_model
    from evoclaw.providers.registry import NoModelFound
    from evoclaw.wiring.settings import model_for_run

    try:
        with waiting("looking for a model"):
            asyncio.run(model_for_run(None, os.environ))
    except NoModelFound:
        offer_model(os.environ)


async def _up(options: UpOptions) -> int:
    from evoclaw.wiring.application import open_application
    from evoclaw.wiring.broker_endpoint import LOOPBACK

    if options.lan is not None and options.host is not None:
        raise ConfigError("--lan and --host cannot be used together; --lan takes an address too")
    opened = open_application(
        host=options.host or LOOPBACK,
        lan=options.lan or "",
        port=options.port,
        engine=options.engine,
        agent_id=None if options.no_edge else options.name or "",
        workspace=options.folder.resolve(),
        model=options.model,
        tls=_tls(options),
        api=_api(options),
        env=os.environ,
    )
    for line in stop_lines(local_stops(os.environ)):
        print_err(line)
    async with AsyncExitStack() as stack:
        with waiting("starting the broker, the service and the edge"):
            house = await stack.enter_async_context(opened)
        run_by = "" if house.owns_broker else " (named by [broker], not started here)"
        print_err(f"broker on {house.broker_url}{run_by}")
        if house.invite_url and house.invite_url != house.broker_url:
            print_err(
                f"edges on other machines: {house.invite_url}; invite one with "
                "`evoclaw edges invite NAME`"
            )
        if house.api_url:
            print_err(
                f"service on {house.api_url}, API docs on {house.api_url}/docs; "
                "start with `evoclaw chat`"
            )
            print_err(
                f"dashboard on {house.api_url}/; `evoclaw page` prints a link that logs you in"
            )
        if edge := house.orchestrator.default_edge:
            print_err(f"sessions work on {edge}, in {options.folder.resolve()}")
        for member in house.orchestrator.fleet.online():
            print_err(f"edge {member.agent_id}: online")  # it connected before `listen`
        house.orchestrator.on_presence(_show)
        _print_problems(house)
        notify_systemd(READY)
        with reduced_gc():
            await _serve_until_stopped(house)
        print_err("stopped")
    return exits.OK


async def _serve_until_stopped(application: Application) -> None:
    """Wait for a stop signal, then drain active runs; a second signal ends the wait."""
    stop, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        (again if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop)
    loop.add_signal_handler(signal.SIGHUP, _reload, application)
    await stop.wait()
    notify_systemd(STOPPING)
    if (live := application.active_runs) > 0:
        print_err(
            f"active runs: {live}; press Ctrl-C again to stop now, they resume at the next start"
        )
    draining = asyncio.create_task(application.drain())
    waiting = asyncio.create_task(again.wait())
    await asyncio.wait((draining, waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, waiting):
        task.cancel()
    await asyncio.wait((draining, waiting))


def _reload(application: Application) -> None:
    """Reload the settings; settings with an error change nothing."""
    notify_systemd(RELOADING)
    try:
        print_err(application.reload())
        _print_problems(application)
    except EvoClawError as problem:
        print_err(f"evoclaw: the settings were not reloaded: {problem}")
    notify_systemd(READY)


def _print_problems(application: Application) -> None:
    for problem in application.problems():
        print_err(problem)


def _api(options: UpOptions) -> dict[str, object] | None:
    """The options that override settings of the service; None starts no service."""
    if options.no_api:
        return None
    overrides = {"host": options.api_host, "port": options.api_port}
    return {name: value for name, value in overrides.items() if value is not None}


def _tls(options: UpOptions) -> tuple[Path, Path, Path] | None:
    if options.cert is None and options.key is None:
        return None
    if options.cert is None or options.key is None:
        raise ConfigError("--cert and --key must be used together")
    ca_file = options.ca_file or options.cert
    return options.cert.absolute(), options.key.absolute(), ca_file.absolute()


def _show(change: PresenceChange) -> None:
    print_err(f"edge {change.agent_id}: {'online' if change.online else 'offline'}")
