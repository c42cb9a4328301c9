"""`evoclaw edge`: run an edge agent on this machine, or join a fleet first."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evoclaw.cli import exits
from evoclaw.cli.gc_settings import paused_gc, reduced_gc
from evoclaw.cli.options import FILE, CommandGroup
from evoclaw.cli.output import print_err
from evoclaw.cli.systemd_notify import READY, STOPPING, notify_systemd
from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.edge.joining import JoinInvitation

RIGHTS = {
    "read": ("file_read",),
    "write": ("file_read", "file_write"),
    "run": ("file_read", "file_write", "git", "shell"),
    "all": ("*",),
}
"""The capabilities of each choice of rights."""


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--config", type=FILE, metavar="FILE", show_default="agent.toml", help="Read this agent.toml"
)
@click.option(
    "--folder",
    type=FILE,
    metavar="FOLDER",
    show_default="workspace of agent.toml",
    help="Let tools work in this folder",
)
@click.option(
    "--new-key",
    is_flag=True,
    help="Set aside a journal whose key is lost, and use a new key",
)
@click.pass_context
def edge(context: click.Context, config: Path | None, folder: Path | None, *, new_key: bool) -> int:
    """Run an edge agent until SIGINT or SIGTERM."""
    if context.invoked_subcommand is not None:
        return exits.OK
    path = config or Path("agent.toml")
    env = dict(os.environ)
    if folder is not None:
        env["EVOCLAW_EDGE_WORKSPACE"] = str(folder.absolute())
    with paused_gc():
        return asyncio.run(_serve(path if config or path.exists() else None, env, new_key=new_key))


@edge.command("join", help="Join a fleet with the token or link of `evoclaw edges invite`")
@click.argument("url", help="Link, or broker such as mqtt://192.0.2.7:1883")
@click.option("--token", metavar="TOKEN", help="Join with this one-time token; a link contains it")
@click.option("--ca-file", type=FILE, metavar="FILE", help="Trust this CA for the broker")
@click.option(
    "--ca-fingerprint",
    metavar="SHA256",
    help="Trust the CA of the broker that has this fingerprint; a link contains it",
)
@click.option(
    "--config", type=FILE, default=Path("agent.toml"), metavar="FILE", help="Write this file"
)
@click.option(
    "--folder",
    type=FILE,
    metavar="FOLDER",
    show_default="asked for, else a new folder",
    help="Let tools work in this folder",
)
@click.option(
    "--rights",
    type=click.Choice([*RIGHTS]),
    show_default="asked for, else read",
    help="Let tools read files, write them too, run commands too, or do everything",
)
@click.option(
    "--capabilities",
    metavar="A,B",
    help="Grant exactly these capabilities to tools here; `*` grants all",
)
def _join(
    url: str,
    token: str | None,
    ca_file: Path | None,
    ca_fingerprint: str | None,
    config: Path,
    folder: Path | None,
    rights: str | None,
    capabilities: str | None,
) -> int:
    from evoclaw.wiring.edge import describe_edge
    from evoclaw.wiring.pairing import join_fleet

    if rights is not None and capabilities is not None:
        raise ConfigError("--rights and --capabilities set the same; use one of them")
    invitation = _invitation(url, token, ca_fingerprint)
    if folder is None and sys.stdin.isatty():
        folder = click.prompt(
            "Folder that tools may work in", default=Path.cwd(), type=FILE, err=True
        )
    if rights is None and capabilities is None and sys.stdin.isatty():
        rights = click.prompt(
            "Rights of tools there", default="read", type=click.Choice([*RIGHTS]), err=True
        )
    named = [name.strip() for name in (capabilities or "").split(",") if name.strip()]
    work = join_fleet(
        invitation.url,
        invitation.token,
        config,
        named if capabilities is not None else [*RIGHTS[rights or "read"]],
        os.environ,
        ca_file=None if ca_file is None else ca_file.absolute(),
        ca_sha256=invitation.ca_sha256,
        workspace=None if folder is None else folder.expanduser().absolute(),
    )
    name = asyncio.run(work)
    print_err(describe_edge(config, os.environ))
    print_err(f"joined as {name}; start the edge with: evoclaw edge --config {config}")
    return exits.OK


def _invitation(url: str, token: str | None, ca_sha256: str | None) -> JoinInvitation:
    """The invitation, from a link or from the arguments."""
    from evoclaw.edge.joining import JoinInvitation, is_fingerprint, is_link, read_link

    if is_link(url):
        if token is not None:
            raise ConfigError("the link contains a token; omit --token")
        return read_link(url)
    if token is None:
        raise ConfigError(
            "a token is missing: add --token TOKEN, or use the link of `evoclaw edges invite`"
        )
    if ca_sha256 is not None and not is_fingerprint(ca_sha256):
        raise ConfigError(
            f"{ca_sha256[:80]!r} is not a fingerprint; copy all 64 characters of --ca-fingerprint"
        )
    return JoinInvitation(url, token, ca_sha256 or "")


async def _serve(path: Path | None, env: Mapping[str, str], *, new_key: bool) -> int:
    from evoclaw.wiring.edge import open_edge

    async with open_edge(path, env, new_key=new_key) as opened:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, opened.stop)
        name = opened.parts.identity.agent_id
        count = len(opened.parts.executor.tools())
        hint = "" if count else '; allow some with capabilities = ["file_read"] in agent.toml'
        print_err(f"edge {name}: {count} tools{hint}")
        notify_systemd(READY)
        with reduced_gc():
            await opened.run()
        notify_systemd(STOPPING)
        print_err(f"edge {name}: stopped")
    return exits.OK
