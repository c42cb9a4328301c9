"""`evoclaw mcp serve`: our tools, or those of the fleet, for any MCP client."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.clean import clean
from evoclaw.cli.fleet import show
from evoclaw.cli.render import tell
from evoclaw.cli.terminal import AtTerminal, has_keyboard
from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Approver, NobodyThere
from evoclaw.governance.approvals import Remembered
from evoclaw.governance.autonomy import Level

TOKEN = "EVOCLAW_MCP_TOKEN"
WAIT = 15.0
"""Seconds that an edge is waited for."""


class Wanted(Struct, frozen=True):
    """What clients are to be offered, and how far they may go."""

    workspace: Path
    """Where local tools work."""
    level: Level
    approver: Approver
    on: str | None = None
    """An edge whose tools are offered instead; `any`, or `*` for each."""
    tools: tuple[str, ...] | None = None
    """These tools only."""
    wait: float = WAIT


class Door(Struct, frozen=True):
    """Where HTTP listens, and who may come in."""

    host: str
    port: int
    token: str = ""
    names: tuple[str, ...] = ()


class Approved(Protocol):
    """The tools of one server."""

    @property
    def approved(self) -> Mapping[str, str]:
        """What may be used, and its digest."""
        ...

    @property
    def waiting(self) -> Mapping[str, str]:
        """What is new or was changed."""
        ...


class Pins(Protocol):
    """What was approved."""

    def all(self) -> Mapping[str, Approved]:
        """Every server that was seen."""
        ...

    def approve(self, server: str, names: Collection[str] | None = None) -> Approved:
        """Approve what waits, or of it the named ones."""
        ...

    def forget(self, server: str) -> None:
        """Take every approval back."""
        ...


class McpWiring(Protocol):
    """Who can build it; imports go down only, so it is handed in. No model is needed."""

    def mcp_over_stdio(self, wanted: Wanted, env: Mapping[str, str]) -> Coroutine[Any, Any, None]:
        """Serve until the client closes our input."""
        ...

    def mcp_over_http(
        self, wanted: Wanted, door: Door, env: Mapping[str, str]
    ) -> AbstractAsyncContextManager[str]:
        """Serve while the block runs; gives the address."""
        ...

    def mcp_pins(self, env: Mapping[str, str]) -> Pins:
        """What was approved of the tools of others."""
        ...


def mcp(options: Namespace, wiring: McpWiring) -> int:
    """Serve until the client leaves, or until told to stop; or see to what others offer us."""
    if options.action != "serve":
        return _approvals(options, wiring.mcp_pins(os.environ))
    try:
        return asyncio.run(_serve(options, wiring))
    except ImportError as missing:
        raise ConfigError(f"MCP needs more: pip install 'evoclaw[mcp]' ({missing})") from None


async def _serve(options: Namespace, wiring: McpWiring) -> int:
    wanted = Wanted(
        _folder(options), _level(options), _approver(options), options.on, _names(options)
    )
    if not options.http:
        serving = asyncio.create_task(wiring.mcp_over_stdio(wanted, os.environ))
        _when_told_to_stop(serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
        return exits.OK
    stop = asyncio.Event()
    _when_told_to_stop(stop.set)
    door = Door(options.host, options.port, _token(options), tuple(options.name))
    async with wiring.mcp_over_http(wanted, door, os.environ) as url:
        tell(f"MCP on {url}")
        await stop.wait()
        tell("leaving")
    return exits.OK


def _approvals(options: Namespace, pins: Pins) -> int:
    match options.action:
        case "approve":
            pins.approve(options.server, options.tool or None)
        case "forget":
            pins.forget(options.server)
        case _:
            pass
    for name, server in sorted(pins.all().items()):
        for tool in sorted(server.approved):
            show(f"{clean(name)}: {clean(tool)}")
        for tool in sorted(server.waiting):
            show(f"{clean(name)}: {clean(tool)} (waits: evoclaw mcp approve {clean(name)})")
    return exits.OK


def _when_told_to_stop(stop: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _folder(options: Namespace) -> Path:
    folder = Path(options.folder).resolve()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    return folder


def _level(options: Namespace) -> Level:
    if options.read_only:
        return Level.READ_ONLY
    return Level.FULL if options.yes else Level.SUPERVISED


def _names(options: Namespace) -> tuple[str, ...] | None:
    if options.tools is None:
        return None
    return tuple(name.strip() for name in options.tools.split(",") if name.strip())


def _approver(options: Namespace) -> Approver:
    # Over stdio, the keyboard belongs to the client.
    if options.http and has_keyboard():
        return Remembered(AtTerminal(sys.stdin.fileno(), sys.stderr))
    return NobodyThere("nobody is there to approve it; the owner can serve it with --yes")


def _token(options: Namespace) -> str:
    if options.token_file is None:
        return os.environ.get(TOKEN, "")
    try:
        return Path(options.token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{options.token_file} cannot be read: {problem}") from None
