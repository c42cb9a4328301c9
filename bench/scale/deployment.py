"""A deployment of real processes: PostgreSQL, a broker, a model, orchestrators and edges.

They connect through proxies that can drop or freeze connections.
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
from bench.scale.delay_proxy import DelayProxy
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
NAMES = ("one", "two", "three", "four")
READY_TIMEOUT_S = 60.0
RESTART_DELAY_S = 1.0
"""Seconds before an orchestrator that exited is started again."""
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "PYTHONPATH")
EDGES_PER_GROUP = 30
"""Edges in one process, except those with their own process."""


@dataclass(frozen=True)
class Plan:
    """The size and the limits of a deployment."""

    edges: int = 100
    single_edges: int = 10
    """How many of the edges have their own process and their own proxy."""
    broker: str = "nats"
    lease: float = 8.0
    calls_of_run: int = 12
    turns_of_run: int = 30
    calls_of_user: int = 40
    """The limit over all runs of a user; 0 means no limit."""
    orchestrators: int = 3
    direct: bool = False
    """Connect without proxies, so that their cost is not measured."""
    delayed: bool = False
    """Connect to PostgreSQL through the delaying proxy, which counts round trips."""
    store: str = "postgres"
    """`postgres`, or `sqlite` for a single orchestrator with its embedded database."""
    postgres_settings: tuple[str, ...] = ("fsync=off",)


class BalancingProxy(FaultProxy):
    """A fault proxy to several servers: each connection goes to the next server."""

    def __init__(self, ports: Sequence[int], seed: int = 0) -> None:
        self._ports, self._turn = list(ports), seed
        super().__init__("127.0.0.1", ports[0], seed=seed)

    @property
    def _upstream(self) -> tuple[str, int]:
        # A client that reaches a dead server reconnects, as with several DNS addresses.
        self._turn += 1
        return "127.0.0.1", self._ports[self._turn % len(self._ports)]

    @_upstream.setter
    def _upstream(self, address: tuple[str, int]) -> None:
        """Ignored: the upstream is chosen for each connection."""


@dataclass
class Orchestrator:
    """An `evoclaw up` process with its own home and a fixed port."""

    name: str
    home: Path
    env: dict[str, str]
    store: BalancingProxy
    broker: BalancingProxy
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The base URL of its HTTP API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start the process; `wait_ready` waits until it serves."""
        argv = (sys.executable, "-m", "evoclaw", "up", "--no-edge", "--api-port", str(self.port))
        with (self.home / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *argv, cwd=self.home, env=self.env, stdout=log, stderr=log
            )

    async def wait_ready(self, http: aiohttp.ClientSession, *, restart: bool = False) -> None:
        """Wait until the orchestrator reports ready.

        Args:
            http: The HTTP client session.
            restart: Start the process again if it exits, as its systemd unit would; it exits when
                the store is unreachable at start-up.
        """
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not await self.is_ready(http):
                assert self.process is not None
                if self.process.returncode is not None and not restart:
                    raise RuntimeError(f"{self.name} exited: {self.log_text()[-2000:]}")
                if self.process.returncode is not None:
                    await asyncio.sleep(RESTART_DELAY_S)
                    await self.start()
                await asyncio.sleep(0.1)

    async def is_ready(self, http: aiohttp.ClientSession) -> bool:
        """Whether the orchestrator reports ready now."""
        timeout = aiohttp.ClientTimeout(2)
        try:
            async with http.get(f"{self.url}/health/ready", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, and wait until the process has exited."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(sig)
            await self.process.wait()

    def log_text(self) -> str:
        """The output of the process."""
        return (self.home / "log").read_text(errors="replace")


class EdgeGroup(Process):
    """Several edges in one process."""

    def __init__(self, edges: Sequence[EdgeProcess], log: Path) -> None:
        super().__init__(log)
        self.edges = edges

    async def start(self) -> None:
        """Start the process with all its edges."""
        await self.spawn("bench.scale.edge_group", *(str(edge.config) for edge in self.edges))


@dataclass
class Deployment:
    """All running processes."""

    folder: Path
    plan: Plan
    postgres: Postgres
    brokers: list[Broker]
    orchestrators: list[Orchestrator]
    model_pid: int
    edges: list[EdgeProcess] = field(default_factory=list)
    edge_groups: list[EdgeGroup] = field(default_factory=list)
    edge_proxies: dict[str, BalancingProxy] = field(default_factory=dict)
    """By the name of the edge; only edges with their own process."""
    delay: DelayProxy | None = None

    @property
    def model_log(self) -> Path:
        """The log of requests to the model."""
        return self.folder / "model-requests.jsonl"

    def all_edges(self) -> Iterator[EdgeProcess]:
        """All edges, with their own process or in a group."""
        yield from self.edges
        for group in self.edge_groups:
            yield from group.edges


def settings(plan: Plan) -> str:
    """The `evoclaw.toml` of each orchestrator."""
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
tools = ["bash", "edge_call", "task", "todoread"]
limits = {{ max_turns = 25, tool_error_limit = 100 }}
"""


def edge_names(plan: Plan) -> list[str]:
    """The names of all edges."""
    return [f"e-{number:03d}" for number in range(plan.edges)]


def cancel_on_sigterm() -> None:
    """Cancel the current task on SIGTERM, so that the started processes are stopped as well."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@asynccontextmanager
async def deploy(folder: Path, plan: Plan) -> AsyncGenerator[Deployment]:
    """Run a deployment while the block runs; its edges are started, and not yet approved."""
    accounts_folder = folder / "accounts"
    accounts("add", accounts_folder, "orchestrator", "--role", "orchestrator")
    if plan.edges:
        accounts("add", accounts_folder, *edge_names(plan))
    async with AsyncExitStack() as stack:
        postgres = Postgres(settings=plan.postgres_settings)
        stack.callback(postgres.close)
        if plan.store == "postgres":
            await asyncio.to_thread(postgres.start)
        access, brokers = await _broker(folder, plan, stack)
        log = folder / "model-requests.jsonl"
        model_pid, model_port = _model(log, stack)
        deployment = Deployment(folder, plan, postgres, brokers, [], model_pid)
        if plan.delayed:
            deployment.delay = stack.enter_context(DelayProxy(postgres.port))
        for name in NAMES[: plan.orchestrators]:
            orchestrator = await _orchestrator(deployment, name, access, model_port, stack)
            deployment.orchestrators.append(orchestrator)
            await orchestrator.start()
            stack.push_async_callback(orchestrator.kill)
        await _edges(deployment, access, stack)
        yield deployment


async def _broker(
    folder: Path, plan: Plan, stack: AsyncExitStack
) -> tuple[BrokerAccess, list[Broker]]:
    if plan.broker == "nats":
        access = await stack.enter_async_context(nats_cluster(folder))
        return access, access.nodes
    tls, home = folder / "certificates", folder / "broker"
    tls.mkdir()
    home.mkdir()
    certificates = make_certificates(tls)
    (home / "dynamic-security.json").write_text(accounts("mosquitto", folder / "accounts"))
    broker = mosquitto(home, tls)
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
    deployment: Deployment,
    name: str,
    access: BrokerAccess,
    model_port: int,
    stack: AsyncExitStack,
) -> Orchestrator:
    number = NAMES.index(name)
    store, broker = (
        BalancingProxy([deployment.postgres.port], number),
        BalancingProxy(access.ports, number),
    )
    await stack.enter_async_context(store)
    await stack.enter_async_context(broker)
    home = deployment.folder / name
    home.mkdir(mode=0o700)
    shared_key = deployment.folder / NAMES[0] / "orchestrator.key"
    if number:
        shutil.copy(shared_key, home)
    else:
        Signer.load_or_create(shared_key)
    (home / "evoclaw.toml").write_text(settings(deployment.plan))
    devices = Devices(home / "pairing")
    for edge in edge_names(deployment.plan):
        # As if each edge had joined by an invitation: the first tools it offers are trusted.
        await devices.invite(edge, time.time())
    store_port, broker_port = (
        (deployment.postgres.port, access.ports[number % len(access.ports)])
        if deployment.plan.direct
        else (store.port, broker.port)
    )
    if deployment.delay is not None:
        store_port = deployment.delay.port
    url = deployment.postgres.url.replace(f":{deployment.postgres.port}/", f":{store_port}/")
    inherited = {key: os.environ[key] for key in INHERITED_VARIABLES if key in os.environ}
    env = inherited | {
        "EVOCLAW_HOME": str(home),
        "EVOCLAW_BROKER_URL": f"mqtts://127.0.0.1:{broker_port}",
        "EVOCLAW_BROKER_USERNAME": "orchestrator",
        "EVOCLAW_BROKER_PASSWORD_FILE": str(access.folder / "passwords" / "orchestrator"),
        "EVOCLAW_BROKER_CA_FILE": _authority(deployment.folder),
        "EVOCLAW_BROKER_QOS": str(_qos(deployment.plan)),
        "EVOCLAW_MODEL": "openai/scripted",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{model_port}/{name}/v1",
        "OPENAI_API_KEY": "none",
    }
    if deployment.plan.store == "postgres":
        env["EVOCLAW_STORE_URL"] = url
    return Orchestrator(name, home, env, store, broker)


def _qos(plan: Plan) -> int:
    """The quality of service that docs/guides/scale.md recommends for each broker."""
    return 0 if plan.broker == "nats" else 1


def _authority(folder: Path) -> str:
    return str(folder / "certificates" / "ca.pem")


async def _edges(deployment: Deployment, access: BrokerAccess, stack: AsyncExitStack) -> None:
    key = Signer.load_or_create(deployment.folder / NAMES[0] / "orchestrator.key").public_key
    names, plan = edge_names(deployment.plan), deployment.plan
    # All grouped edges share one proxy, which distributes them over the nodes of a cluster.
    shared = BalancingProxy(access.ports)
    await stack.enter_async_context(shared)
    for name in names[: plan.single_edges]:
        proxy = deployment.edge_proxies[name] = BalancingProxy(access.ports)
        await stack.enter_async_context(proxy)
        deployment.edges.append(_edge(deployment, access, name, proxy, key))
    for first in range(plan.single_edges, len(names), EDGES_PER_GROUP):
        group = names[first : first + EDGES_PER_GROUP]
        edges = [_edge(deployment, access, name, shared, key) for name in group]
        deployment.edge_groups.append(EdgeGroup(edges, deployment.folder / f"edges-{first}.log"))
    for process in (*deployment.edges, *deployment.edge_groups):
        stack.push_async_callback(process.kill)
        await process.start()


def _edge(
    deployment: Deployment, access: BrokerAccess, name: str, proxy: BalancingProxy, key: str
) -> EdgeProcess:
    folder = deployment.folder / "edges" / name
    return EdgeProcess(
        name,
        folder,
        {
            "agent_id": name,
            "capabilities": ["shell"],
            "heartbeat_s": 10,
            "data": str(folder / "data"),
            "orchestrator_keys": [key],
            # `make sandboxbench` measures sandboxes; a hundred of them would dominate here.
            "sandbox": {"engine": "none"},
            "tools": {"only": ["bash"]},
            "broker": {
                "url": f"mqtts://127.0.0.1:{proxy.port}",
                "username": name,
                "password_file": str(access.folder / "passwords" / name),
                "ca_file": _authority(deployment.folder),
                "keep_alive_s": 5,
                "qos": _qos(deployment.plan),
            },
        },
    )
