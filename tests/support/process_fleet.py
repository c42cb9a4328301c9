"""A whole fleet for fault tests: a real broker, real edge processes, orchestrators, bad links."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.orchestrator.fleet.grant_signer import GrantSigner
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls import command_tables
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.databases.migrations import open_database
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.broker_accounts import BrokerRole
from evoclaw.transport.mqtt import MqttLink
from evoclaw.transport.wire import tool_hash
from evoclaw.trust.grants import Signer
from evoclaw.trust.pairing import Devices
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet_processes import GATE, PATIENCE, DriverProcess, EdgeProcess
from tests.support.programs.orchestrator_driver import Ask, Setting, ask
from tests.support.waiting import until


def run_id() -> str:
    return secrets.token_hex(16)


def new_id() -> str:
    """The request id of the first call of a new run."""
    return f"{run_id()}.1.0.1"


def mark(request_id: str, *, hold: bool = False, before: str = "", after: str = "") -> str:
    """A command that must not be run twice: it leaves a mark; held, it then waits for the gate."""
    wait = f"while [ ! -e {GATE} ]; do sleep 0.02; done" if hold else ""
    steps = (before, f"echo {shlex.quote(request_id)} >> marks", wait, after)
    return "; ".join(step for step in steps if step)


async def _commands_in(path: Path) -> CommandStore:
    """The commands in a file of their own, or in that of a whole orchestrator."""
    if path.name != "evoclaw.db":
        return await CommandStore.open(path)
    return CommandStore(await open_database(path, (command_tables.SCHEMA,)))


@dataclass
class InProcessOrchestrator:
    """An orchestrator inside the test."""

    orchestrator: Orchestrator
    store: CommandStore

    async def ask(
        self,
        request_id: str,
        tool: str = "bash",
        *,
        on: str = "pi",
        epoch: int = 1,
        queue: float = PATIENCE,
        **arguments: JSON,
    ) -> ToolResult:
        asked = Ask(request_id, on, tool, arguments, epoch, queue)
        async with asyncio.timeout(3 * PATIENCE):
            return await ask(self.orchestrator, asked)

    async def mark(self, request_id: str, *, on: str = "pi", hold: bool = False) -> ToolResult:
        return await self.ask(request_id, on=on, command=mark(request_id, hold=hold))

    async def state(self, request_id: str) -> str:
        row = await self.store.get(request_id)
        return "" if row is None else str(row.state)

    async def wait_for_state(self, request_id: str, state: str) -> None:
        """Wait until a command has come so far."""

        async def so() -> bool:
            return await self.state(request_id) == state

        await until(so, say=f"{request_id} is {state}")

    async def wait_online(self, name: str = "pi", seconds: float = PATIENCE) -> None:
        """Wait until an edge is online and its tools are known."""
        member = await self.orchestrator.wait_for(name, seconds)
        await until(lambda: len(member.tools) > 0, seconds, f"the tools of {name}")

    async def presence(self, name: str, online: bool, seconds: float = PATIENCE) -> None:
        fleet = self.orchestrator.fleet
        await until(lambda: fleet.is_online(name) is online, seconds, f"{name} online: {online}")

    async def ping(self, name: str = "pi", seconds: float = PATIENCE) -> JSON:
        return (await self.orchestrator.query(name, "ping", seconds=seconds)).result


@dataclass
class ProcessFleet:
    """A broker and all who talk over it; what was started is dead when it ends."""

    folder: Path
    broker: EmbeddedBroker
    signer: Signer
    stack: AsyncExitStack
    anonymous: bool = False
    passwords: dict[str, str] = field(default_factory=dict[str, str])

    async def address(
        self, name: str, role: BrokerRole = BrokerRole.ORCHESTRATOR, proxy: FaultProxy | None = None
    ) -> Address:
        """The way to the broker, with an account that is made if there is none.

        One for each: some brokers allow one connection to each account.
        """
        if self.anonymous:
            return Address("127.0.0.1", self.broker.port)
        if name not in self.passwords:
            self.passwords[name] = await self.broker.add(name, role)
        port = self.broker.port if proxy is None else proxy.port
        return Address("127.0.0.1", port, username=name, password=self.passwords[name])

    async def proxy(self, seed: int = 0) -> FaultProxy:
        """A bad network to the broker."""
        made = FaultProxy("127.0.0.1", self.broker.port, seed=seed)
        return await self.stack.enter_async_context(made)

    @asynccontextmanager
    async def hub(
        self,
        number: int = 0,
        *,
        proxy: FaultProxy | None = None,
        keep_alive: int = 30,
        store: str = "",
    ) -> AsyncGenerator[InProcessOrchestrator]:
        """An orchestrator inside the test, connected while the block runs."""
        name = f"orchestrator-{number}"
        link = MqttLink(await self.address(name, proxy=proxy), keep_alive=keep_alive)
        path = self.folder / f"{store or name}.db"
        async with await _commands_in(path) as opened:
            orchestrator = Orchestrator(link, opened, grants=GrantSigner(self.signer))
            async with orchestrator.connected():
                yield InProcessOrchestrator(orchestrator, opened)

    async def driver(
        self,
        number: int = 1,
        *,
        proxy: FaultProxy | None = None,
        keep_alive: int = 30,
        store: str = "",
        at_once: int = 64,
    ) -> DriverProcess:
        """An orchestrator as a process; to be started."""
        name = f"orchestrator-{number}"
        address = await self.address(name, proxy=proxy)
        setting = Setting(
            address.host,
            address.port,
            address.username,
            address.password,
            str(self.folder / f"{store or name}.db"),
            str(self.folder / "orchestrator.key"),
            keep_alive,
            at_once,
        )
        made = DriverProcess(setting, self.folder / f"{name}.log")
        self.stack.push_async_callback(made.kill)
        return made

    async def edge(
        self,
        name: str = "pi",
        *,
        proxy: FaultProxy | None = None,
        keep_alive: int = 30,
        heartbeat: int = 30,
        place: str = "",
        data: Path | None = None,
        **limits: JSON,
    ) -> EdgeProcess:
        """An edge process; to be started."""
        folder = self.folder / (place or name)
        folder.mkdir()
        address = await self.address(name, BrokerRole.AGENT, proxy)
        (folder / "password").write_text(address.password)
        config: dict[str, JSON] = {
            "agent_id": name,
            "capabilities": ["*"],
            "heartbeat_s": heartbeat,
            "data": str(data or folder / "data"),
            "orchestrator_keys": [self.signer.public_key],
            "limits": limits,
            "broker": {
                "url": f"mqtt://127.0.0.1:{address.port}",
                "username": name,
                "password_file": str(folder / "password"),
                "keep_alive_s": keep_alive,
            },
        }
        made = EdgeProcess(name, folder, config)
        self.stack.push_async_callback(made.kill)
        return made

    async def start_online(self, hub: InProcessOrchestrator, *edges: EdgeProcess) -> None:
        """Start edges and see them there."""
        for edge in edges:
            await edge.start()
        for edge in edges:
            await hub.wait_online(edge.name)

    async def approved(self, name: str = "pi") -> EdgeProcess:
        """An edge that is there and whose tools were approved; nobody else is there."""
        edge = await self.edge(name)
        devices = Devices(self.folder / "pairing")
        async with self.hub() as hub:
            await self.start_online(hub, edge)
            tools = hub.orchestrator.fleet.member(name).tools
            hashes = {tool.name: tool_hash(tool) for tool in tools}
        await devices.compare_tools(name, hashes.items(), time.time())
        await devices.approve(name, time.time())
        return edge


@asynccontextmanager
async def open_process_fleet(
    folder: Path, engine: str, *, anonymous: bool = False
) -> AsyncGenerator[ProcessFleet]:
    """A broker of this engine, with nobody there yet."""
    broker = EmbeddedBroker(folder / "broker", engine=engine, anonymous=anonymous)
    signer = Signer.load_or_create(folder / "orchestrator.key")
    async with broker, AsyncExitStack() as stack:
        yield ProcessFleet(folder, broker, signer, stack, anonymous)
