"""The brokers of `examples/deploy`, as real processes that go by the files which are shipped."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex

import pytest
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import TlsSettings, parse_url
from evoclaw.transport.broker_engines import NatsEngine
from evoclaw.transport.mqtt import MqttLink
from tests.support.brokers import Broker
from tests.support.certificates import Certificates, make_certificates
from tests.support.ports import free_port
from tests.transport.test_broker import ACCEPTED, WAIT, Mqtt

FILES = Path(__file__).parents[2] / "examples" / "deploy"
PLUGIN = "mosquitto_dynamic_security.so"


def accounts(*arguments: str | Path) -> str:
    """What `accounts.py` prints."""
    command = [sys.executable, FILES / "accounts.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def password_of(folder: Path, name: str) -> str:
    """As `accounts.py` left it."""
    return (folder / "passwords" / name).read_text()


class BrokerAccess:
    """The ways into a broker, with TLS, for the accounts in a folder."""

    def __init__(self, folder: Path, authority: Path, *ports: int) -> None:
        self.folder, self.ports = folder, ports
        self.nodes: list[Broker] = []
        """To be killed, where there are several."""
        self._authority = str(authority)
        self.secure = ssl.create_default_context(cafile=str(authority))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> BrokerAccess:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def link(self, name: str, node: int) -> MqttLink:
        """The link of an account, as an edge or an orchestrator has it."""
        tls, password = TlsSettings(self._authority), password_of(self.folder, name)
        address = parse_url(f"mqtts://127.0.0.1:{self.ports[node]}", tls=tls)
        return MqttLink(replace(address, username=name, password=password))

    async def connect(self, name: str, node: int = 0) -> Mqtt:
        """A connection of an account; tried until its node is one of the cluster."""
        password = password_of(self.folder, name)
        async with asyncio.timeout(WAIT):
            while True:
                mqtt = await Mqtt.open(
                    self.ports[node], name, password, id=token_hex(8), secure=self.secure
                )
                if mqtt.code == ACCEPTED:
                    self._stack.push_async_callback(mqtt.drop)
                    return mqtt
                await mqtt.drop()
                # Nothing tells when three nodes have agreed who leads them.
                await asyncio.sleep(0.05)


def nats_program() -> str:
    """The one of the wheel; the test is skipped without it."""
    try:
        return NatsEngine().program()
    except ConfigError as problem:
        pytest.skip(str(problem))


@asynccontextmanager
async def nats_cluster(folder: Path) -> AsyncGenerator[BrokerAccess]:
    """Three nodes, each with `nats/nats.conf` as it is shipped."""
    program, tls = nats_program(), folder / "certificates"
    tls.mkdir()
    certificates = make_certificates(tls)
    inner, outer = ([free_port() for _ in range(3)] for _ in range(2))
    password = f"x{token_hex(16)}"
    routes = [f"tls://route:{password}@127.0.0.1:{port}" for port in inner]
    users = accounts("nats", folder / "accounts")
    async with AsyncExitStack() as stack:
        nodes: list[Broker] = []
        for number, (own, port) in enumerate(zip(inner, outer, strict=True)):
            place = folder / f"n{number}"
            _write_configuration(place, certificates, users)
            said = {
                "NODE": f"n{number}",
                "MQTT_PORT": str(port),
                "CLUSTER_PORT": str(own),
                "CLUSTER_PASSWORD": password,
                "ROUTES": json.dumps(routes),
            }
            pairs = [f"{name}={value}" for name, value in said.items()]
            argv = ["env", f"--chdir={place}", *pairs, program, "--config", "nats.conf"]
            nodes.append(Broker(argv, port, place))
            stack.callback(nodes[-1].kill)
        # At the same time: none of them takes connections before most of them are there.
        await asyncio.gather(*(node.start() for node in nodes))
        door = await stack.enter_async_context(
            BrokerAccess(folder / "accounts", certificates.ca, *outer)
        )
        door.nodes = nodes
        yield door


def _write_configuration(place: Path, certificates: Certificates, users: str) -> None:
    (place / "tls").mkdir(parents=True)
    shutil.copy(FILES / "nats" / "nats.conf", place)
    (place / "users.conf").write_text(users)
    shutil.copy(certificates.ca, place / "tls" / "ca.pem")
    shutil.copy(certificates.server_cert, place / "tls" / "server.pem")
    shutil.copy(certificates.server_key, place / "tls" / "server-key.pem")


@asynccontextmanager
async def mosquitto_with_plugin(folder: Path) -> AsyncGenerator[BrokerAccess]:
    """Mosquitto with `mosquitto/mosquitto.conf`, and certificates of its own."""
    tls, place = folder / "certificates", folder / "broker"
    tls.mkdir()
    place.mkdir()
    certificates = make_certificates(tls)
    (place / "dynamic-security.json").write_text(accounts("mosquitto", folder / "accounts"))
    broker = mosquitto(place, tls)
    try:
        await broker.start()
        async with BrokerAccess(folder / "accounts", certificates.ca, broker.port) as door:
            yield door
    finally:
        broker.kill()


def mosquitto(place: Path, tls: Path) -> Broker:
    """Not yet started; of what is shipped only the places and the port are others here."""
    program = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    libraries = [Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu*"), Path("/usr/local/lib")]
    plugins = [path for path in (one / PLUGIN for one in libraries) if path.exists()]
    if program is None or not plugins:
        pytest.skip("there is no mosquitto with its dynamic-security here: apt install mosquitto")
    port = free_port()
    text = (FILES / "mosquitto" / "mosquitto.conf").read_text()
    for said, here in (
        (f"/usr/lib/{PLUGIN}", str(plugins[0])),
        ("listener 8883", f"listener {port} 127.0.0.1"),
        ("/etc/mosquitto/certs/", f"{tls}/"),
        ("/var/lib/mosquitto/", f"{place}/"),
    ):
        assert said in text, f"mosquitto.conf says nothing of {said}"
        text = text.replace(said, here)
    # It would become a user who cannot read these files.
    text += "user root\n" if os.geteuid() == 0 else ""
    (place / "mosquitto.conf").write_text(text)
    return Broker([program, "-c", str(place / "mosquitto.conf")], port, place)
