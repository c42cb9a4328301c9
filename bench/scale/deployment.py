"""All that runs, as real processes: PostgreSQL, a broker, a model, orchestrators, edges.

What goes between them goes through proxies that can cut it off.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tests.support.brokers import Broker
from tests.support.certificates import make_certificates
from tests.support.deployed_brokers import BrokerAccess, accounts, mosquitto, nats_cluster
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet_processes import EdgeProcess, Process
from tests.support.ports import free_port
from tests.support.postgres import Postgres

from evoclaw.trust.grants import Signer
from evoclaw.trust.pairing import Devices

ROOT = Path(__file__).parent.parent.parent
NAMES = ("one", "two", "three")
PATIENCE = 60.0
RESTART = 1.0
"""Seconds before what ended is started again."""
KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH")
CROWD = 30
"""Edges of one process, but for those that have their own."""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    edges: int = 100
    alone: int = 10
    """Of them, those with a process and a way of their own."""
    broker: str = "nats"
    lease: float = 8.0
    calls_of_run: int = 12
    turns_of_run: int = 30
    calls_of_user: int = 40
    """Of all runs of a user together; 0 is without that bound."""
    orchestrators: int = 3
    direct: bool = False
    """Nothing stands between them: what a proxy costs is not measured."""


class Way(FaultProxy):
    """A way to any of several servers: a connection goes to the next one that is there."""

    def __init__(self, ports: Sequence[int], seed: int = 0) -> None:
        self._ports, self._turn = list(ports), seed
        super().__init__("127.0.0.1", ports[0], seed=seed)

    @property
    def _upstream(self) -> tuple[str, int]:
        # Whoever meets a dead one comes again, as with a name that has several addresses.
        self._turn += 1
        return "127.0.0.1", self._ports[self._turn % len(self._ports)]

    @_upstream.setter
    def _upstream(self, there: tuple[str, int]) -> None:
        """Each connection chooses anew."""


@dataclass
class Orchestrator:
    """`evoclaw up` in a home of its own, on a port that it keeps."""

    name: str
    home: Path
    env: dict[str, str]
    store: Way
    broker: Way
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where its service is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start it; it is ready a little later."""
        argv = (sys.executable, "-m", "evoclaw", "up", "--no-edge", "--api-port", str(self.port))
        with (self.home / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *argv, cwd=self.home, env=self.env, stdout=log, stderr=log
            )

    async def ready(self, http: aiohttp.ClientSession, *, again: bool = False) -> None:
        """Wait until it says that all is well.

        Args:
            http: To ask it with.
            again: Whether it is started again if it ends, as its unit would: it does when the
                store is away just then.
        """
        async with asyncio.timeout(PATIENCE):
            while not await self.is_ready(http):
                assert self.process is not None
                if self.process.returncode is not None and not again:
                    raise RuntimeError(f"{self.name} ended: {self.words()[-2000:]}")
                if self.process.returncode is not None:
                    await asyncio.sleep(RESTART)
                    await self.start()
                await asyncio.sleep(0.1)

    async def is_ready(self, http: aiohttp.ClientSession) -> bool:
        """Whether it says so now."""
        patience = aiohttp.ClientTimeout(2)
        try:
            async with http.get(f"{self.url}/health/ready", timeout=patience) as found:
                return found.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait until it is gone."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(how)
            await self.process.wait()

    def words(self) -> str:
        """What it wrote to its terminal."""
        return (self.home / "log").read_text(errors="replace")


class Crowd(Process):
    """Several edges in one process."""

    def __init__(self, edges: Sequence[EdgeProcess], log: Path) -> None:
        super().__init__(log)
        self.edges = edges

    async def start(self) -> None:
        """Start all of them."""
        await self.spawn("bench.scale.edge_group", *(str(edge.config) for edge in self.edges))


@dataclass
class House:
    """Everything that is up."""

    folder: Path
    plan: Plan
    postgres: Postgres
    brokers: list[Broker]
    orchestrators: list[Orchestrator]
    model: int
    """The process of the model."""
    edges: list[EdgeProcess] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    ways: dict[str, Way] = field(default_factory=dict)
    """By the name of an edge that has one."""

    @property
    def paid(self) -> Path:
        """What was asked of the model."""
        return self.folder / "paid.jsonl"

    def all_edges(self) -> Iterator[EdgeProcess]:
        """Whatever process they are in."""
        yield from self.edges
        for crowd in self.crowds:
            yield from crowd.edges


def settings(plan: Plan) -> str:
    """The `evoclaw.toml` of each orchestrator, but for its ways."""
    shared = f"[budget.user]\ncalls = {plan.calls_of_user}" if plan.calls_of_user else ""
    return f"""
[server]
requests_per_minute = 1000000
burst = 100000
connections = 10000
watchers = 5000
watchers_per_caller = 5000

[runs]
lease_s = {plan.lease}

[rates]
per_minute = 100000
burst = 100000

[budget]
calls = {plan.calls_of_run}
turns = {plan.turns_of_run}
warn_at = 1.0
ask_at = 1.0

{shared}

[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"
on = "*"
tools = ["edge_call", "task", "todoread"]
limits = {{ max_turns = 25, tool_error_limit = 100 }}
"""


def edge_names(plan: Plan) -> list[str]:
    """Who is there."""
    return [f"e-{number:03d}" for number in range(plan.edges)]


def end_with_us() -> None:
    """Have what was started end also when this process is told to."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@asynccontextmanager
async def brought_up(folder: Path, plan: Plan) -> AsyncGenerator[House]:
    """All of it, while the block lasts; edges are started, and not yet approved."""
    place = folder / "accounts"
    accounts("add", place, "orchestrator", "--role", "orchestrator")
    if plan.edges:
        accounts("add", place, *edge_names(plan))
    async with AsyncExitStack() as stack:
        postgres = Postgres()
        stack.callback(postgres.close)
        await asyncio.to_thread(postgres.start)
        door, brokers = await _broker(folder, plan, stack)
        log = folder / "paid.jsonl"
        model, models = _model(log, stack)
        house = House(folder, plan, postgres, brokers, [], model)
        for name in NAMES[: plan.orchestrators]:
            made = await _orchestrator(house, name, door, models, stack)
            house.orchestrators.append(made)
            await made.start()
            stack.push_async_callback(made.end)
        await _edges(house, door, stack)
        yield house


async def _broker(
    folder: Path, plan: Plan, stack: AsyncExitStack
) -> tuple[BrokerAccess, list[Broker]]:
    if plan.broker == "nats":
        door = await stack.enter_async_context(nats_cluster(folder))
        return door, door.nodes
    tls, place = folder / "certificates", folder / "broker"
    tls.mkdir()
    place.mkdir()
    certificates = make_certificates(tls)
    (place / "dynamic-security.json").write_text(accounts("mosquitto", folder / "accounts"))
    broker = mosquitto(place, tls)
    stack.callback(broker.kill)
    await broker.start()
    return BrokerAccess(folder / "accounts", certificates.ca, broker.port), [broker]


def _model(log: Path, stack: AsyncExitStack) -> tuple[int, int]:
    argv = [sys.executable, "-m", "bench.scale.model_process", str(log)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait, 20)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.pid, int(process.stdout.readline())


async def _orchestrator(
    house: House, name: str, door: BrokerAccess, models: int, stack: AsyncExitStack
) -> Orchestrator:
    number = NAMES.index(name)
    store = await stack.enter_async_context(Way([house.postgres.port], number))
    broker = await stack.enter_async_context(Way(door.ports, number))
    home = house.folder / name
    home.mkdir(mode=0o700)
    first = house.folder / NAMES[0] / "orchestrator.key"
    if number:
        shutil.copy(first, home)
    else:
        Signer.load_or_create(first)
    (home / "evoclaw.toml").write_text(settings(house.plan))
    devices = Devices(home / "pairing")
    for edge in edge_names(house.plan):
        # As if each had joined by an invitation: what it first offers is trusted.
        await devices.invite(edge, time.time())
    there, meeting = (
        (house.postgres.port, door.ports[number % len(door.ports)])
        if house.plan.direct
        else (store.port, broker.port)
    )
    url = house.postgres.url.replace(f":{house.postgres.port}/", f":{there}/")
    kept = {key: os.environ[key] for key in KEPT if key in os.environ}
    env = kept | {
        "EVOCLAW_HOME": str(home),
        "EVOCLAW_STORE_URL": url,
        "EVOCLAW_BROKER_URL": f"mqtts://127.0.0.1:{meeting}",
        "EVOCLAW_BROKER_USERNAME": "orchestrator",
        "EVOCLAW_BROKER_PASSWORD_FILE": str(door.folder / "passwords" / "orchestrator"),
        "EVOCLAW_BROKER_CA_FILE": _authority(house.folder),
        "EVOCLAW_BROKER_QOS": str(_qos(house.plan)),
        "EVOCLAW_MODEL": "openai/scripted",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{models}/{name}/v1",
        "OPENAI_API_KEY": "none",
    }
    return Orchestrator(name, home, env, store, broker)


def _qos(plan: Plan) -> int:
    """As docs/guides/scale.md says of each broker."""
    return 0 if plan.broker == "nats" else 1


def _authority(folder: Path) -> str:
    return str(folder / "certificates" / "ca.pem")


async def _edges(house: House, door: BrokerAccess, stack: AsyncExitStack) -> None:
    key = Signer.load_or_create(house.folder / NAMES[0] / "orchestrator.key").public_key
    names, plan = edge_names(house.plan), house.plan
    # One way for all that share a process: each node of a cluster has its part of them.
    common = await stack.enter_async_context(Way(door.ports))
    for name in names[: plan.alone]:
        way = house.ways[name] = await stack.enter_async_context(Way(door.ports))
        house.edges.append(_edge(house, door, name, way, key))
    for first in range(plan.alone, len(names), CROWD):
        edges = [_edge(house, door, name, common, key) for name in names[first : first + CROWD]]
        house.crowds.append(Crowd(edges, house.folder / f"crowd-{first}.log"))
    for each in (*house.edges, *house.crowds):
        stack.push_async_callback(each.kill)
        await each.start()


def _edge(house: House, door: BrokerAccess, name: str, way: Way, key: str) -> EdgeProcess:
    folder = house.folder / "edges" / name
    return EdgeProcess(
        name,
        folder,
        {
            "agent_id": name,
            "capabilities": ["shell"],
            "heartbeat_s": 10,
            "data": str(folder / "data"),
            "orchestrator_keys": [key],
            # What a sandbox costs is measured elsewhere; a hundred of them would be all there is.
            "sandbox": {"engine": "none"},
            "tools": {"only": ["bash"]},
            "broker": {
                "url": f"mqtts://127.0.0.1:{way.port}",
                "username": name,
                "password_file": str(door.folder / "passwords" / name),
                "ca_file": _authority(house.folder),
                "keep_alive_s": 5,
                "qos": _qos(house.plan),
            },
        },
    )
