"""Builds `evoclaw up`: a broker, an orchestrator, the service and an edge on one machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import JSON
from evoclaw.wiring.fleet import BrokerLogin, open_fleet, write_broker_login
from evoclaw.wiring.store import open_stores

if TYPE_CHECKING:
    from evoclaw.orchestrator.fleet.join_handler import JoinHandler
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.transport.broker import EmbeddedBroker
    from evoclaw.trust.pairing import Devices
    from evoclaw.wiring.runtime import Runtime

ORCHESTRATOR_USERNAME = "orchestrator"


class Application(Struct, frozen=True):
    """The running application."""

    broker_url: str
    """The address of the broker."""
    orchestrator: Orchestrator
    api_url: str = ""
    """The address of the service; empty if it is not started."""
    runtime: Runtime | None = None
    env: Mapping[str, str] = {}

    @property
    def active_runs(self) -> int:
        """How many runs are active."""
        return 0 if self.runtime is None else self.runtime.runs.active_count

    async def drain(self) -> None:
        """Start no more runs, and wait for active runs to end, up to `runs.drain_s`."""
        if self.runtime is not None:
            await self.runtime.runs.drain(self.runtime.settings.runs.drain_s)

    def reload(self) -> str:
        """Reload the settings; returns what changed, for a log line."""
        if self.runtime is None:
            return "nothing to reload: this process runs without a service"
        from evoclaw.wiring.settings_reload import reload_settings

        done = reload_settings(self.runtime, self.env)
        changed = ", ".join(done.changed)
        text = f"settings reloaded: {changed}" if changed else "settings unchanged"
        if done.needs_restart:
            text += f"; needs a restart: {', '.join(done.needs_restart)}"
        return text


class _LocalEdge(Struct, frozen=True):
    """The edge on this machine."""

    agent_id: str
    workspace: Path
    model: str


@asynccontextmanager
async def open_application(
    *,
    host: str,
    port: int,
    engine: str,
    agent_id: str | None,
    workspace: Path,
    model: str,
    env: Mapping[str, str],
    tls: tuple[Path, Path, Path] | None = None,
    api: Mapping[str, object] | None = None,
) -> AsyncGenerator[Application]:
    """Start broker, orchestrator, service and edge; all are stopped when the block ends.

    `tls` is the certificate of the broker, its key and the CA file. `api` overrides settings of
    the service; None starts no service. If the settings name a broker, that broker is used: then
    its owner makes the accounts, and no edge is started on this machine.
    """
    from evoclaw.config import default_data_folder
    from evoclaw.wiring.settings import orchestrator_settings

    home, settings = default_data_folder(env), orchestrator_settings(env)
    own = not settings.broker.is_configured
    async with AsyncExitStack() as stack:
        stack.enter_context(_lock_data_folder(home))
        broker = _OwnBroker(home, host, port, engine, tls)
        url = await broker.start(stack) if own else settings.broker.url
        stored = await stack.enter_async_context(open_stores(env))
        fleet = open_fleet(env, database=stored.database, devices=stored.devices)
        orchestrator = await stack.enter_async_context(fleet)
        if own:
            joining = _joining(home, orchestrator, broker.running, stored.devices)
            orchestrator.report_receiver.on_join = joining.on_join
            if agent_id is not None:
                await _approve_own_edge(stored.devices, agent_id)
                local = _LocalEdge(agent_id, workspace, model)
                await _start_edge(local, home, broker, orchestrator, stack)
        if api is None:
            yield Application(url, orchestrator)
            return
        from evoclaw.wiring.http import serving_http
        from evoclaw.wiring.runtime import open_runtime

        brain = await stack.enter_async_context(open_runtime(orchestrator, stored, env))
        server = replace(settings.server, **api)
        at = await stack.enter_async_context(serving_http(brain, server, env))
        yield Application(url, orchestrator, at, brain, env)


def _lock_data_folder(home: Path) -> AbstractContextManager[None]:
    """Lock the data folder: a second orchestrator would resume the runs of this one."""
    from evoclaw.store.folder_lock import locked_folder

    text = (
        f"another `evoclaw up` runs with the data folder {home}; stop it, or set EVOCLAW_HOME "
        "to another folder"
    )
    return locked_folder(home, text)


class _OwnBroker:
    """The broker that this process runs, and the login for other processes of this user."""

    running: EmbeddedBroker
    login: BrokerLogin

    def __init__(
        self, home: Path, host: str, port: int, engine: str, tls: tuple[Path, Path, Path] | None
    ) -> None:
        self._home, self._host, self._port, self._engine = home, host, port, engine
        self._tls = tls

    async def start(self, stack: AsyncExitStack) -> str:
        """Start the broker and write its login file; returns its address."""
        from evoclaw.transport.broker import EmbeddedBroker
        from evoclaw.transport.broker_accounts import BrokerRole
        from evoclaw.transport.broker_engines import BrokerTlsFiles

        files = None if self._tls is None else BrokerTlsFiles(*self._tls[:2])
        self.running = broker = EmbeddedBroker(
            self._home / "broker", engine=self._engine, host=self._host, port=self._port, tls=files
        )
        await stack.enter_async_context(broker)
        url = f"{'mqtt' if self._tls is None else 'mqtts'}://{broker.host}:{broker.port}"
        password = await broker.renew(ORCHESTRATOR_USERNAME, BrokerRole.ORCHESTRATOR)
        signed_by = None if self._tls is None else str(self._tls[2])
        self.login = BrokerLogin(url, ORCHESTRATOR_USERNAME, password, signed_by)
        write_broker_login(self._home, self.login)
        stack.callback(_remove_broker_login, self._home)
        return url


async def _start_edge(
    local: _LocalEdge,
    home: Path,
    broker: _OwnBroker,
    orchestrator: Orchestrator,
    stack: AsyncExitStack,
) -> None:
    """Run the edge on this machine as a process of its own."""
    from evoclaw.transport.child_process import supervised

    config = await _write_agent_toml(local, home, broker.login, broker.running)
    await _pin_edge_key(orchestrator, local.agent_id, config.parent)
    command = (sys.executable, "-m", "evoclaw", "edge", "--config", str(config))
    telemetry = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    edge = supervised("the edge on this machine", config.parent, *command, env=telemetry)
    await stack.enter_async_context(edge)


async def _pin_edge_key(orchestrator: Orchestrator, agent_id: str, folder: Path) -> None:
    """Pin the device key of the edge on this machine, so its receipts can be verified."""
    from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
    from evoclaw.trust.receipts import DeviceKey

    if isinstance(verifier := orchestrator.report_receiver.receipts, ReceiptVerifier):
        await verifier.pin(agent_id, DeviceKey.load_or_create(folder / "device.key").public_key)


async def _approve_own_edge(devices: Devices, agent_id: str) -> None:
    """Let the edge of this machine in without an invitation, unless it was revoked."""
    if devices.get(agent_id) is None:
        await devices.invite(agent_id, time.time())


def _joining(
    home: Path, orchestrator: Orchestrator, broker: EmbeddedBroker, devices: Devices
) -> JoinHandler:
    from evoclaw.orchestrator.fleet.join_handler import JoinHandler
    from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
    from evoclaw.trust.grants import Signer
    from evoclaw.trust.pairing import Invitations

    key = Signer.load_or_create(home / "orchestrator.key").public_key
    pairings = Invitations(home / "pairing")
    send, verifier = orchestrator.requests.send, orchestrator.report_receiver.receipts
    pin = verifier.pin if isinstance(verifier, ReceiptVerifier) else None
    return JoinHandler(pairings, devices, broker.accounts, send, key, pin)


async def _write_agent_toml(
    local: _LocalEdge, home: Path, login: BrokerLogin, broker: EmbeddedBroker
) -> Path:
    """Write the `agent.toml` of the edge on this machine; it holds every capability."""
    from evoclaw.config import write_agent_toml
    from evoclaw.transport.broker_accounts import write_private
    from evoclaw.trust.grants import Signer

    folder = home / "edge" / local.agent_id
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    password = await broker.renew(local.agent_id)
    write_private(folder / "password", password.encode())
    values: dict[str, JSON] = {
        "agent_id": local.agent_id,
        "agent_type": "desktop",
        "capabilities": ["*"],
        "workspace": str(local.workspace),
        "data": str(folder),
        "orchestrator_keys": [Signer.load_or_create(home / "orchestrator.key").public_key],
        "broker": {
            "url": login.url,
            "username": local.agent_id,
            "password_file": str(folder / "password"),
        },
    }
    if login.ca_file is not None:
        values["broker"]["ca_file"] = login.ca_file
    if local.model:
        values["model"] = {"name": local.model}
    path = folder / "agent.toml"
    write_agent_toml(path, values, replace=True)
    return path


def _remove_broker_login(home: Path) -> None:
    from evoclaw.wiring.fleet import BROKER_LOGIN_FILE

    (home / BROKER_LOGIN_FILE).unlink(missing_ok=True)
