"""`evoclaw mcp`: serve tools to MCP clients, and approve tools of MCP servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CommandGroup, ExclusiveCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal import TerminalApprover, is_interactive
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Approver, NoApprover
from evoclaw.governance.approvals import SessionApprovalCache
from evoclaw.governance.autonomy import Level
from evoclaw.wiring.mcp_server import McpHttpOptions, McpServerOptions

if TYPE_CHECKING:
    from evoclaw.executors.mcp.pins import PinFile

TOKEN_VARIABLE = "EVOCLAW_MCP_TOKEN"
OverStdio: TypeAlias = Callable[[McpServerOptions, Mapping[str, str]], Coroutine[Any, Any, None]]
"""Serves until the client closes standard input."""
OverHttp: TypeAlias = Callable[
    [McpServerOptions, McpHttpOptions, Mapping[str, str]], AbstractAsyncContextManager[str]
]
"""Serves while the block runs; yields the address."""


@click.group(cls=CommandGroup)
def mcp() -> None:
    """Serve tools over MCP; approve tools of MCP servers, and sign in to them."""


@mcp.command(
    "serve",
    cls=ExclusiveCommand,
    exclusive=(("read_only", "yes"),),
    help="Serve tools to an MCP client over stdio or HTTP",
)
@click.option(
    "--http", "over_http", is_flag=True, help="Serve over HTTP instead of stdin and stdout"
)
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Bind HTTP to this address")
@click.option("--port", type=int, default=8931, metavar="PORT", help="Bind HTTP to this port")
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="Accept this host name; repeatable"
)
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    show_default="$EVOCLAW_MCP_TOKEN",
    help="Require the token in this file",
)
@click.option(
    "--on",
    metavar="AGENT",
    show_default="this machine",
    help="Serve the tools of this edge; `any`, or `*` for each edge",
)
@click.option(
    "--folder", type=FILE, default=Path(), metavar="FOLDER", help="Let local tools work here"
)
@click.option("--tools", metavar="A,B", show_default="all", help="Serve only these tools")
@click.option("--read-only", is_flag=True, help="Serve only tools that read")
@click.option("--yes", is_flag=True, help="Write and execute without asking")
def _serve(**options: Any) -> int:
    from evoclaw.wiring.mcp_server import mcp_over_http, mcp_over_stdio

    return serve(McpServeOptions(**options), mcp_over_stdio, mcp_over_http)


@mcp.command("list", help="List tools of MCP servers, approved and waiting")
@json_option()
def _list(*, as_json: bool) -> int:
    return _print_pins(_pins(), as_json=as_json)


@mcp.command("approve", help="Approve new or changed tools of an MCP server")
@click.argument("server", help="Name of the server; EDGE/SERVER for one of an edge")
@click.argument("tool", nargs=-1, help="Tools to approve  [default: all that wait]")
@json_option()
def _approve(server: str, tool: tuple[str, ...], *, as_json: bool) -> int:
    pins = _pins()
    pins.approve(server, tool or None)
    return _print_pins(pins, as_json=as_json)


@mcp.command("forget", help="Withdraw every approval of an MCP server")
@click.argument("server", help="Name of the server; EDGE/SERVER for one of an edge")
@json_option()
def _forget(server: str, *, as_json: bool) -> int:
    pins = _pins()
    pins.forget(server)
    return _print_pins(pins, as_json=as_json)


@mcp.command("login", help="Sign in to an MCP server with a browser")
@click.argument("server", help="Name of the server; EDGE/SERVER for one of an edge")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    show_default="any free port",
    help="Let the browser come back to this local port",
)
@click.option("--no-browser", is_flag=True, help="Only print the address to sign in at")
@click.option(
    "--config",
    type=FILE,
    default=Path("agent.toml"),
    metavar="FILE",
    help="Read the servers of an edge from this agent.toml",
)
def _login(server: str, port: int | None, config: Path, *, no_browser: bool) -> int:
    return asyncio.run(_sign_in(server, port, config, browser=not no_browser))


@mcp.command("logout", help="Delete the stored sign-in of an MCP server")
@click.argument("server", help="Name of the server; EDGE/SERVER for one of an edge")
def _logout(server: str) -> int:
    from evoclaw.wiring.mcp_connections import mcp_sign_ins

    if not mcp_sign_ins(os.environ).forget(server):
        raise ConfigError(f"there is no sign-in of an MCP server {server!r}")
    print_err(f"signed out of {clean(server)}; the server may still accept its tokens")
    return exits.OK


async def _sign_in(name: str, port: int | None, config: Path, *, browser: bool) -> int:
    from evoclaw.cli.mcp_sign_in import browser_sign_in
    from evoclaw.wiring.mcp_connections import mcp_definition, mcp_sign_in

    server, sign_ins = mcp_definition(os.environ, name, config)
    wanted = port if port is not None else server.oauth.redirect_port if server.oauth else 0
    keyboard = sys.stdin.fileno() if is_interactive() else None
    async with browser_sign_in(wanted, sys.stderr, keyboard, browser=browser) as prompt:
        signed_in = await mcp_sign_in(server, sign_ins, prompt)
    if signed_in:
        print_err(f"signed in to {clean(name)}")
    else:
        print_err(f"{clean(name)} did not ask for a sign-in")
    return exits.OK


class McpServeOptions(Struct, frozen=True):
    """The options of `evoclaw mcp serve`."""

    over_http: bool
    host: str
    port: int
    names: tuple[str, ...]
    token_file: Path | None
    on: str | None
    folder: Path
    tools: str | None
    read_only: bool
    yes: bool


def serve(options: McpServeOptions, over_stdio: OverStdio, over_http: OverHttp) -> int:
    """Serve until the client disconnects, or until a stop signal."""
    try:
        return asyncio.run(_serving(options, over_stdio, over_http))
    except ImportError as missing:
        raise ConfigError(
            f"MCP support is not installed: pip install 'evoclaw[mcp]' ({missing})"
        ) from None


async def _serving(options: McpServeOptions, over_stdio: OverStdio, over_http: OverHttp) -> int:
    server = McpServerOptions(
        _folder(options),
        Level.of_flags(read_only=options.read_only, yes=options.yes),
        _approver(options),
        options.on,
        _names(options),
        ask_client=not _has_terminal(options),
    )
    if not options.over_http:
        serving = asyncio.create_task(over_stdio(server, os.environ))
        _on_stop_signal(serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
        return exits.OK
    stop = asyncio.Event()
    _on_stop_signal(stop.set)
    http = McpHttpOptions(options.host, options.port, _token(options), options.names)
    async with over_http(server, http, os.environ) as url:
        print_err(f"MCP on {url}")
        await stop.wait()
        print_err("stopped")
    return exits.OK


def _pins() -> PinFile:
    from evoclaw.wiring.mcp_connections import mcp_pins

    return mcp_pins(os.environ)


def _print_pins(pins: PinFile, *, as_json: bool) -> int:
    if as_json:
        print_out(
            {
                name: {"approved": sorted(server.approved), "waiting": sorted(server.waiting)}
                for name, server in sorted(pins.all().items())
            }
        )
        return exits.OK
    for name, server in sorted(pins.all().items()):
        for tool in sorted(server.approved):
            print_out(f"{clean(name)}: {clean(tool)}")
        for tool in sorted(server.waiting):
            print_out(f"{clean(name)}: {clean(tool)} (waits: evoclaw mcp approve {clean(name)})")
    return exits.OK


def _on_stop_signal(stop: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _folder(options: McpServeOptions) -> Path:
    folder = options.folder.resolve()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; create it, or use another --folder")
    return folder


def _names(options: McpServeOptions) -> tuple[str, ...] | None:
    if options.tools is None:
        return None
    return tuple(name.strip() for name in options.tools.split(",") if name.strip())


def _has_terminal(options: McpServeOptions) -> bool:
    """Whether the owner can be asked here; over stdio, the keyboard belongs to the client."""
    return options.over_http and is_interactive()


def _approver(options: McpServeOptions) -> Approver:
    if _has_terminal(options):
        return SessionApprovalCache(TerminalApprover(sys.stdin.fileno(), sys.stderr))
    return NoApprover("no one is available to approve it; the owner can serve it with --yes")


def _token(options: McpServeOptions) -> str:
    if options.token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return options.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read the token in {options.token_file}: {problem}") from None
