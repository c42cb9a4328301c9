"""A user's chair: a real `evoclaw up`, real edges that joined it, and the commands a user types."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from evoclaw.cli import exits
from tests.support.command_line import Shell, Typed
from tests.support.up_process import PATIENCE, SETTINGS, UpProcess, ok, up_process
from tests.support.waiting import until


@dataclass
class SeatEdge:
    """One `evoclaw edge` on a machine of its own: a home, a workspace, a process."""

    name: str
    shell: Shell
    log: Path
    process: asyncio.subprocess.Process | None = None

    @property
    def config(self) -> Path:
        """The settings of the edge, as `evoclaw edge join` wrote them."""
        return self.shell.workspace / "agent.toml"

    @property
    def workspace(self) -> Path:
        """The folder that the tools of the edge work in, unless its settings name another."""
        return self.shell.home / ".evoclaw" / "edge" / self.name / "workspace"

    def output(self) -> str:
        """Everything that the edge printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    async def start(self) -> None:
        """Start the process, without waiting for anything."""
        with self.log.open("ab") as log:
            self.process = await self.shell.start("edge", stdout=log.fileno(), stderr=log.fileno())

    async def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and wait until the process has ended."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            async with asyncio.timeout(PATIENCE):
                await self.process.wait()


class Seat:
    """A service, the edges that joined it, and a shell to type commands in."""

    def __init__(self, up: UpProcess, folder: Path) -> None:
        self.up, self._folder = up, folder
        self.edges: dict[str, SeatEdge] = {}

    async def type(self, *arguments: str, stdin: bytes | None = None) -> Typed:
        """Type an `evoclaw` command on the machine of the service."""
        return await self.up.shell.type(*arguments, stdin=stdin)

    async def join(self, name: str, *, toml: str = "", capabilities: str = "*") -> SeatEdge:
        """Pair a new machine with the service; its edge is not started yet.

        Args:
            name: The id of the edge.
            toml: Appended to the `agent.toml` that joining writes.
            capabilities: What its tools may do.
        """
        invitation = await self.type("edges", "invite", name)
        assert invitation.code == exits.OK, invitation.err
        edge = self.new_edge(name)
        joined = await edge.shell.type(*invitation.out.split()[1:], "--capabilities", capabilities)
        assert joined.code == exits.OK, joined.err
        edge.workspace.mkdir(parents=True)
        with edge.config.open("a") as file:
            file.write(toml)
        return edge

    def new_edge(
        self, name: str, shell: Callable[[Path, Path, dict[str, str]], Shell] = Shell
    ) -> SeatEdge:
        """A machine for an edge, with a home of its own; it has not joined yet."""
        home = self._folder / name
        home.mkdir()
        edge = SeatEdge(name, shell(home, home, {}), self._folder / f"{name}.log")
        self.edges[name] = edge
        return edge

    async def add_edge(self, name: str, *, toml: str = "", capabilities: str = "*") -> SeatEdge:
        """Pair a new machine, start its edge, and wait until the service sees it online."""
        edge = await self.join(name, toml=toml, capabilities=capabilities)
        await edge.start()
        await self.wait_online(name)
        return edge

    async def wait_online(self, name: str) -> None:
        """Wait until the service sees an edge online, with its tools."""
        client = await self.up.wait_ready()
        await self.up.wait_online(client, name)

    async def wait_offline(self, name: str) -> None:
        """Wait until the service sees an edge offline."""
        client = await self.up.wait_ready()

        async def offline() -> bool:
            edges = ok(await client.get("/v1/fleet"))["items"]
            return any(edge["agent_id"] == name and not edge["online"] for edge in edges)

        await until(offline, PATIENCE, f"{name} is offline")

    async def wait_for(self, edge: SeatEdge, text: str) -> None:
        """Wait until an edge has printed a text."""
        await until(lambda: text in edge.output(), PATIENCE, f"{edge.name} prints {text!r}")


@asynccontextmanager
async def seat(
    folder: Path,
    settings: str = SETTINGS,
    *options: str,
    edge: bool = False,
    env: dict[str, str] | None = None,
) -> AsyncGenerator[Seat]:
    """A running service with these settings; everything that was started ends with the block.

    Args:
        folder: An empty folder for the homes of all machines.
        settings: The text of `evoclaw.toml`.
        options: Further options of `evoclaw up`.
        edge: Whether `evoclaw up` starts its own edge.
        env: Further environment variables of the service and the commands.
    """
    async with up_process(folder) as up, AsyncExitStack() as stack:
        up.shell.env |= env or {}
        up.configure(settings)
        place = Seat(up, folder)

        async def end_edges() -> None:
            for member in place.edges.values():
                await member.end(signal.SIGKILL)

        stack.push_async_callback(end_edges)
        await up.start(*options, edge=edge)
        yield place
